//! The way back of a stopped thread that works without us: should the recorder die in the middle, the thread runs on
//! in our call and returns to libc's own return from a signal handler, which takes all of the thread's state from a
//! signal frame that we laid below its stack. Between the two lies what our call is handed; below the frame it runs.

use std::arch::x86_64::__cpuid_count;

use super::tracee::Registers;

/// `syscall; ret`.
pub(super) const SYSCALL_RET: &[u8] = &[0x0f, 0x05, 0xc3];
/// `mov $15, %rax; syscall`: `rt_sigreturn`, as every libc has it for its signal handlers.
pub(super) const SIGRETURN: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// Bytes below the stack pointer that belong to the running function.
const RED_ZONE: u64 = 128;
/// Stack that has to be left below the frame: our call begins a thread, which takes a few thousand bytes, and more where
/// the program has an allocator of its own.
const REST: u64 = 64 << 10;
/// Bytes of a frame as the kernel reads it: return address, `ucontext`.
pub(super) const FRAME: usize = 312;
/// x87 and SSE state with the XSAVE header.
const LEGACY: usize = 576;
/// Where in the state it is said what it has: software's bytes, and the header's features.
const SOFTWARE: usize = 464;
const FEATURES: usize = 512;
/// `FP_XSTATE_MAGIC1` and `2`.
const MAGIC: (u32, u32) = (0x4650_5853, 0x4650_5845);
/// `UC_FP_XSTATE`, `UC_SIGCONTEXT_SS`, `UC_STRICT_RESTORE_SS`.
const FLAGS: u64 = 7;
/// No state of an alternative signal stack: the kernel refuses it, and leaves that of the thread as it is.
const KEEP_ALTERNATIVE: u32 = 0x40;

/// What is laid below a thread's stack.
pub(super) struct WayBack {
    /// The frame's address, which is where the stack pointer is to be when a call of ours begins: its return address
    /// leads back.
    pub(super) frame_at: u64,
    /// Where data for our call lies, at a multiple of 64.
    pub(super) data_at: u64,
    /// Libc's return from a signal handler.
    pub(super) sigreturn: u64,
    /// All bytes from `frame_at` on.
    pub(super) bytes: Vec<u8>,
}

impl WayBack {
    /// Below the stack that `regs` have, whose lowest address is `stack`, with this data. `None` where it has no room, or
    /// where the vector state is not laid out as it should be.
    pub(super) fn new(
        regs: &Registers,
        (xstate, mask): (&[u8], u64),
        sigreturn: u64,
        stack: u64,
        data: &[u8],
    ) -> Option<WayBack> {
        let state = signal_state(xstate)?;
        let state_at = regs.rsp.checked_sub(RED_ZONE + state.len() as u64)? & !63;
        let data_at = state_at.checked_sub(data.len() as u64)? & !63;
        let frame_at = (data_at.checked_sub(FRAME as u64)? & !15).checked_sub(8)?;
        if frame_at < stack.checked_add(REST)? {
            return None;
        }
        let mut bytes = frame(regs, mask, sigreturn, state_at);
        bytes.resize((data_at - frame_at) as usize, 0);
        bytes.extend(data);
        bytes.resize((state_at - frame_at) as usize, 0);
        bytes.extend(state);
        Some(WayBack { frame_at, data_at, sigreturn, bytes })
    }
}

/// The frame: `rt_sigreturn` takes registers, mask and vector state from it.
fn frame(regs: &Registers, mask: u64, sigreturn: u64, state_at: u64) -> Vec<u8> {
    let (rax, rip) = made_again(regs);
    let mut out = Vec::with_capacity(FRAME);
    let mut put = |words: &[u64]| words.iter().for_each(|word| out.extend(word.to_le_bytes()));
    // Return address; flags, link; stack, its flags and size.
    put(&[sigreturn, FLAGS, 0, 0, u64::from(KEEP_ALTERNATIVE), 0]);
    put(&[regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15]);
    put(&[regs.rdi, regs.rsi, regs.rbp, regs.rbx, regs.rdx, rax, regs.rcx, regs.rsp, rip, regs.eflags]);
    // cs, gs, fs, ss of 16 bits each.
    put(&[(regs.cs & 0xffff) | (regs.ss & 0xffff) << 48]);
    // Error, trap, old mask, fault address; vector state; reserved.
    put(&[0, 0, mask, 0, state_at]);
    put(&[0; 8]);
    put(&[mask]);
    out
}

/// Where to go on. A system call that was interrupted is made again, as the kernel would have it.
fn made_again(regs: &Registers) -> (u64, u64) {
    // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
    let restarts = matches!(regs.rax.cast_signed(), -514..=-512 | -516);
    if regs.orig_rax.cast_signed() >= 0 && restarts {
        (regs.orig_rax, regs.rip.wrapping_sub(2))
    } else {
        (regs.rax, regs.rip)
    }
}

/// The state as a signal frame has it: as long as the features that are in use need, with its marks.
fn signal_state(xstate: &[u8]) -> Option<Vec<u8>> {
    let features = u64::from_le_bytes(xstate.get(FEATURES..FEATURES + 8)?.try_into().ok()?);
    let mut len = LEGACY;
    for feature in (2..63).filter(|feature| features & 1 << feature != 0) {
        let place = __cpuid_count(0xd, feature);
        len = len.max(place.eax as usize + place.ebx as usize);
    }
    let mut state = xstate.get(..len)?.to_vec();
    let mut marks = Vec::new();
    marks.extend(MAGIC.0.to_le_bytes());
    marks.extend((len as u32 + 4).to_le_bytes());
    marks.extend((features | 3).to_le_bytes());
    marks.extend((len as u32).to_le_bytes());
    state.get_mut(SOFTWARE..SOFTWARE + marks.len())?.copy_from_slice(&marks);
    state.extend(MAGIC.1.to_le_bytes());
    Some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regs() -> Registers {
        // SAFETY: plain integers.
        let regs: Registers = unsafe { std::mem::zeroed() };
        Registers {
            rsp: 0x7000_0000_8008,
            rip: 0x4002,
            rax: -512_i64 as u64,
            orig_rax: 7,
            cs: 0x33,
            ss: 0x2b,
            ..regs
        }
    }

    fn word(frame: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(frame[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn the_frame_makes_the_interrupted_call_again_with_mask_and_stack_of_before() {
        let way = WayBack::new(&regs(), (&[0; 4096], 0xabcd), 0x1234, 0x6fff_0000_0000, &[7; 100]).unwrap();
        let frame = &way.bytes[..FRAME];
        assert_eq!(word(frame, 0), 0x1234);
        // sigcontext begins at 48; rax, rsp, rip are its words 13, 15, 16.
        assert_eq!(word(frame, 48 + 13 * 8), 7);
        assert_eq!(word(frame, 48 + 15 * 8), 0x7000_0000_8008);
        assert_eq!(word(frame, 48 + 16 * 8), 0x4000);
        assert_eq!(word(frame, 304), 0xabcd);
        let state_at = word(frame, 48 + 184);
        assert_eq!((state_at % 64, way.data_at % 64), (0, 0));
        // As at the beginning of a function.
        assert_eq!(way.frame_at % 16, 8);
        assert!(way.frame_at + way.bytes.len() as u64 <= 0x7000_0000_8008 - RED_ZONE);
        assert!(way.frame_at + FRAME as u64 <= way.data_at && way.data_at + 100 <= state_at);
        let data = (way.data_at - way.frame_at) as usize;
        assert_eq!(way.bytes[data..data + 100], [7; 100]);
        let state = (state_at - way.frame_at) as usize;
        assert_eq!(way.bytes[state + SOFTWARE..state + SOFTWARE + 4], MAGIC.0.to_le_bytes());
    }

    #[test]
    fn a_stack_without_room_is_refused() {
        let lowest = 0x7000_0000_8008 - REST;
        assert!(WayBack::new(&regs(), (&[0; 4096], 0), 0, lowest, &[]).is_none());
        assert!(WayBack::new(&regs(), (&[0; 100], 0), 0, 0, &[]).is_none());
    }
}
