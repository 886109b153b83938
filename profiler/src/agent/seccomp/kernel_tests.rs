//! The kernel runs the same programs: random ones are installed in a child, which then makes a call under them.

use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};

use super::Filters;
use super::bpf::{Action, Call, Instruction, run};
use crate::random::Random;

/// The call that is filtered; all others are allowed. It has no arguments of its own, and never returns 0.
const CALL: i64 = libc::SYS_getppid;
/// Programs, and calls under each of them.
const PROGRAMS: usize = 400;
const CALLS: usize = 12;

fn op(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

/// A number of any size.
fn number(random: &mut Random) -> u32 {
    random.any() as u32 >> random.below(32)
}

fn any_instruction(random: &mut Random, left: usize) -> Instruction {
    let k = number(random);
    let cell = random.below(16) as u32;
    let by_register = (random.below(2) as u16) << 3;
    match random.below(12) {
        0 | 1 => op(0x20, 0, 0, 4 * random.below(16) as u32),
        2 => op([0, 1, 0x80, 0x81][random.below(4)], 0, 0, k),
        3 => op(0x60 | random.below(2) as u16, 0, 0, cell),
        4 => op(2 | random.below(2) as u16, 0, 0, cell),
        5 => op([7, 0x87][random.below(2)], 0, 0, 0),
        6 => op(0x84, 0, 0, 0),
        7 | 8 => {
            let operation = [0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0][random.below(9)];
            // No constant shift beyond the word, and no constant 0 to divide by: the kernel takes neither.
            let k = match operation {
                0x30 => k.max(1),
                0x60 | 0x70 => k & 31,
                _ => k,
            };
            op(4 | operation | by_register, 0, 0, k)
        }
        9 => op(5, 0, 0, random.below(left.min(4)) as u32),
        _ => {
            let to = |random: &mut Random| random.below(left.min(5)) as u8;
            let (jt, jf) = (to(random), to(random));
            op(5 | [0x10, 0x20, 0x30, 0x40][random.below(4)] | by_register, jt, jf, k)
        }
    }
}

/// All memory is set first: the kernel takes no program that reads what it did not write.
fn program(random: &mut Random) -> Vec<Instruction> {
    let mut program = vec![op(0x20, 0, 0, 0), op(0x15, 1, 0, CALL as u32), op(6, 0, 0, 0x7fff_0000)];
    program.extend([op(0, 0, 0, number(random)), op(1, 0, 0, number(random))]);
    program.extend((0..16).map(|cell| op(2, 0, 0, cell)));
    let len = 1 + random.below(30);
    for at in 0..len {
        program.push(any_instruction(random, len - at));
    }
    // What was computed becomes the number of an error, so that it can be seen; or an action as it comes.
    let end = [0x7fff_0000, 0x7ffc_0000, 0, 0x0003_0000, 0x7ff0_0000, 0x8000_0000, 0x0005_0007];
    if random.below(5) == 0 {
        program.push(op(6, 0, 0, end[random.below(end.len())]));
    } else {
        program.extend([op(0x54, 0, 0, 0xfff), op(0x44, 0, 0, 0x0005_0000), op(0x16, 0, 0, 0)]);
    }
    program
}

/// What the child saw: what each call returned, up to the one that ended it.
fn under_the_kernel(program: &[Instruction], calls: &[Call]) -> Option<Vec<i64>> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has two places.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: pipe has just made these, and nobody else has them.
    let (mut here, there) =
        unsafe { (std::fs::File::from_raw_fd(ends[0]), std::fs::File::from_raw_fd(ends[1])) };
    let raw: Vec<libc::sock_filter> = program
        .iter()
        .map(|one| libc::sock_filter { code: one.code, jt: one.jt, jf: one.jf, k: one.k })
        .collect();
    let list = libc::sock_fprog { len: raw.len() as u16, filter: raw.as_ptr().cast_mut() };
    // SAFETY: the child makes system calls alone, which any child of a program with threads may.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; all memory was made before.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let set = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const list);
            if set != 0 {
                libc::_exit(1);
            }
            for call in calls {
                let args = call.args.map(Option::unwrap_or_default);
                let returned = libc::syscall(CALL, args[0], args[1], args[2], args[3], args[4], args[5]);
                let told = if returned == -1 { -i64::from(*libc::__errno_location()) } else { returned };
                libc::write(there.as_raw_fd(), (&raw const told).cast(), 8);
            }
            libc::_exit(0);
        }
    }
    drop(there);
    let mut bytes = Vec::new();
    here.read_to_end(&mut bytes).unwrap();
    let mut status = 0;
    // SAFETY: `status` is written while the call lasts.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    let mut seen: Vec<i64> = bytes.as_chunks().0.iter().map(|word| i64::from_ne_bytes(*word)).collect();
    if libc::WIFSIGNALED(status) {
        assert_eq!(libc::WTERMSIG(status), libc::SIGSYS);
        seen.push(i64::MIN);
    } else if libc::WEXITSTATUS(status) != 0 {
        return None;
    }
    Some(seen)
}

/// What the child should see, from what we make of the program.
fn expected(program: &[Instruction], calls: &[Call], parent: i64) -> Vec<i64> {
    let mut seen = Vec::new();
    for call in calls {
        let returned = run(program, call).unwrap();
        assert_eq!(returned.len(), 1, "all that it looks at is known");
        seen.push(match Action::of(returned[0]) {
            Action::Allow => parent,
            Action::Errno(0) => 0,
            Action::Errno(errno) => -i64::from(errno),
            // Nobody is there to be asked.
            Action::Ask => -i64::from(libc::ENOSYS),
            Action::Trap | Action::Kill => i64::MIN,
        });
        if seen.last() == Some(&i64::MIN) {
            break;
        }
    }
    seen
}

#[test]
fn random_programs_do_in_the_kernel_what_they_do_here() {
    let mut random = Random(11);
    let (mut taken, mut different) = (0, std::collections::BTreeSet::new());
    for _ in 0..PROGRAMS {
        let mut program = program(&mut random);
        // The address of the call is not known here: no program looks at it.
        for one in &mut program {
            if one.code == 0x20 && (8..16).contains(&one.k) {
                one.k = 0;
            }
        }
        let calls: Vec<Call> = (0..CALLS)
            .map(|_| Call {
                number: CALL as u32,
                args: [(); 6].map(|()| Some(random.any() >> random.below(64))),
            })
            .collect();
        let Some(seen) = under_the_kernel(&program, &calls) else { continue };
        assert_eq!(seen, expected(&program, &calls, i64::from(std::process::id())), "{program:x?}");
        taken += 1;
        different.extend(seen);
    }
    assert!(taken > PROGRAMS / 2, "the kernel took {taken}");
    assert!(different.len() > 200, "{} different ends", different.len());
}

#[test]
fn the_kernel_gives_back_the_filters_of_a_stopped_thread() {
    let mut random = Random(5);
    let filters: Vec<Vec<Instruction>> = (0..3).map(|_| program(&mut random)).collect();
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let raw: Vec<Vec<libc::sock_filter>> = filters
        .iter()
        .map(|filter| {
            filter
                .iter()
                .map(|one| libc::sock_filter { code: one.code, jt: one.jt, jf: one.jf, k: one.k })
                .collect()
        })
        .collect();
    let lists: Vec<libc::sock_fprog> = raw
        .iter()
        .map(|filter| libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() })
        .collect();
    // SAFETY: the child makes system calls alone, which any child of a program with threads may.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            for list in &lists {
                if libc::syscall(
                    libc::SYS_seccomp,
                    libc::SECCOMP_SET_MODE_FILTER,
                    0,
                    std::ptr::from_ref(list),
                ) != 0
                {
                    libc::_exit(1);
                }
            }
            libc::raise(libc::SIGSTOP);
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: `status` is written while the call lasts; the child is traced by this thread alone, and killed at the end.
    let read = unsafe {
        libc::waitpid(child, &raw mut status, libc::WUNTRACED);
        assert!(libc::WIFSTOPPED(status));
        libc::ptrace(libc::PTRACE_SEIZE, child, 0, 0);
        libc::ptrace(libc::PTRACE_INTERRUPT, child, 0, 0);
        libc::waitpid(child, &raw mut status, libc::__WALL);
        let read = Filters::read(child as u32);
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &raw mut status, libc::__WALL);
        read
    };
    // A recorder that is itself filtered cannot read them.
    if read != Err(nix::errno::Errno::EACCES) {
        assert_eq!(read, Ok(Filters(filters)));
    }
}
