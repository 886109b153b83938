//! User-mode registers as the kernel saved them, at a system call and at a probe, and all else in which architectures
//! differ.

#[cfg(bpf_target_arch = "x86_64")]
mod arch {
    use aya_ebpf::programs::ProbeContext;

    /// The head of `struct pt_regs`.
    #[repr(C)]
    pub struct Regs {
        saved: [u64; 4],
        rbp: u64,
        rbx: u64,
        r11: u64,
        r10: u64,
        r9: u64,
        r8: u64,
        rax: u64,
        rcx: u64,
        rdx: u64,
        rsi: u64,
        rdi: u64,
        orig_rax: u64,
        rip: u64,
        cs: u16,
        cs_rest: [u16; 3],
        flags: u64,
        rsp: u64,
    }

    /// Code segment of 64-bit programs. Others number their system calls differently and are left alone.
    const USER_CS: u16 = 0x33;

    /// A call's return address lies where the stack pointer points at entry.
    pub const RETURN_ON_STACK: bool = true;

    impl Regs {
        #[inline(always)]
        pub fn args(&self) -> [u64; 6] {
            [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]
        }
        #[inline(always)]
        pub fn number(&self) -> u32 {
            self.orig_rax as u32
        }
        #[inline(always)]
        pub fn is_foreign(&self) -> bool {
            self.cs != USER_CS
        }
        #[inline(always)]
        pub fn ip(&self) -> u64 {
            self.rip
        }
        #[inline(always)]
        pub fn sp(&self) -> u64 {
            self.rsp
        }
        #[inline(always)]
        pub fn bp(&self) -> u64 {
            self.rbp
        }
    }

    /// Of a thread at a probed instruction.
    #[inline(always)]
    pub fn stack_pointer(ctx: &ProbeContext) -> u64 {
        // SAFETY: the program's own context.
        unsafe { (*ctx.regs).rsp }
    }

    /// General registers by the numbers that instructions have for them.
    #[inline(always)]
    pub fn register(ctx: &ProbeContext, number: u64) -> Option<u64> {
        // Each is loaded by itself: the verifier takes no register whose place is computed.
        macro_rules! load {
            ($($number:literal => $name:ident,)*) => {{
                // SAFETY: members of the program's own context.
                let values = unsafe { [$(core::ptr::read_volatile(&raw const (*ctx.regs).$name),)*] };
                let mut wanted = None;
                for (at, other) in [$($number,)*].into_iter().enumerate() {
                    if other == number {
                        wanted = values.get(at).copied();
                    }
                }
                wanted
            }};
        }
        load! {
            0 => rax, 1 => rcx, 2 => rdx, 3 => rbx, 5 => rbp, 6 => rsi, 7 => rdi, 8 => r8, 9 => r9, 10 => r10, 11 => r11,
            12 => r12, 13 => r13, 14 => r14, 15 => r15,
        }
    }
}

#[cfg(bpf_target_arch = "aarch64")]
mod arch {
    use aya_ebpf::programs::ProbeContext;

    /// The head of `struct pt_regs`.
    #[repr(C)]
    pub struct Regs {
        x: [u64; 31],
        sp: u64,
        pc: u64,
        pstate: u64,
        orig_x0: u64,
        syscallno: i32,
    }

    /// `PSR_MODE32_BIT`
    const MODE_32: u64 = 0x10;

    /// A call's return address is in the link register, and on the stack only later.
    pub const RETURN_ON_STACK: bool = false;

    impl Regs {
        #[inline(always)]
        pub fn args(&self) -> [u64; 6] {
            [self.orig_x0, self.x[1], self.x[2], self.x[3], self.x[4], self.x[5]]
        }
        #[inline(always)]
        pub fn number(&self) -> u32 {
            self.syscallno as u32
        }
        #[inline(always)]
        pub fn is_foreign(&self) -> bool {
            self.pstate & MODE_32 != 0
        }
        #[inline(always)]
        pub fn ip(&self) -> u64 {
            self.pc
        }
        #[inline(always)]
        pub fn sp(&self) -> u64 {
            self.sp
        }
        #[inline(always)]
        pub fn bp(&self) -> u64 {
            self.x[29]
        }
    }

    /// Of a thread at a probed instruction.
    #[inline(always)]
    pub fn stack_pointer(ctx: &ProbeContext) -> u64 {
        // SAFETY: the program's own context, of which the kernel shows the head as `user_pt_regs`.
        unsafe { (*ctx.regs.cast::<aya_ebpf::bindings::user_pt_regs>()).sp }
    }

    /// Nothing asks for one: queue pairs are found by x86-64 instructions alone.
    #[inline(always)]
    pub fn register(_: &ProbeContext, _: u64) -> Option<u64> {
        None
    }
}

pub use arch::{RETURN_ON_STACK, Regs, register, stack_pointer};

/// What an unwinder starts from.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UserRegs {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
}

impl From<&Regs> for UserRegs {
    #[inline(always)]
    fn from(regs: &Regs) -> UserRegs {
        UserRegs { ip: regs.ip(), sp: regs.sp(), bp: regs.bp() }
    }
}
