//! Whether a thread's system-call filters let the agent live: they are read from the kernel while the thread is stopped,
//! and asked about each call that will be made under them (`needs`).

mod bpf;
#[cfg(test)]
mod kernel_tests;
mod needs;

use nix::errno::Errno;

use self::bpf::{Action, BpfError, Call, Instruction, LENGTH};
use self::needs::{NEEDS, Need, Weight};

/// `PTRACE_SECCOMP_GET_FILTER`.
const GET_FILTER: libc::c_uint = 0x420c;
/// Filters of one thread at most; the kernel's own limit on their instructions allows fewer than this.
const FILTERS: usize = 8192;
/// Instructions of all filters of one thread at most, as in the kernel.
const INSTRUCTIONS: usize = 1 << 15;
/// Different ends of one call that are looked at, at most.
const OUTCOMES: usize = 256;

/// The filters of a thread, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Filters(Vec<Vec<Instruction>>);

/// Why the agent cannot live under some filters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    #[error("its system-call filter (seccomp) {what} {call}, which the agent needs")]
    Call { call: &'static str, what: &'static str },
    #[error("its system-call filter (seccomp) cannot be followed at {call}: {reason}")]
    Unclear { call: &'static str, reason: String },
    #[error("its system-call filters (seccomp) cannot be read: {0}{hint}", hint = hint(*.0))]
    Unreadable(Errno),
    #[error("its threads have different system-call filters (seccomp filter)")]
    Mixed,
    #[error("it may make no system calls (seccomp strict)")]
    Strict,
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::EACCES => " (that takes CAP_SYS_ADMIN, and a recorder without a filter of its own)",
        Errno::EINVAL | Errno::EIO => " (the kernel needs CONFIG_CHECKPOINT_RESTORE for that)",
        _ => "",
    }
}

impl Filters {
    /// Reads those of a thread that stands still under our tracing.
    ///
    /// # Errors
    ///
    /// `EINVAL` where it has none.
    pub(super) fn read(tid: u32) -> Result<Filters, Errno> {
        let mut filters = Vec::new();
        let mut left = INSTRUCTIONS;
        // Of the longest there can be: another thread may exchange them between two calls.
        let mut buffer = vec![[0_u8; 8]; LENGTH];
        while filters.len() < FILTERS {
            let address = buffer.as_mut_ptr() as usize;
            // SAFETY: the kernel writes at most `LENGTH` instructions of eight bytes, its own limit of one filter.
            let got = unsafe { libc::ptrace(GET_FILTER, tid as libc::pid_t, filters.len(), address) };
            let count = match Errno::result(got) {
                Ok(count) => usize::try_from(count).map_err(|_| Errno::EINVAL)?,
                Err(Errno::ENOENT) => return Ok(Filters(filters)),
                Err(errno) => return Err(errno),
            };
            left = left.checked_sub(count).ok_or(Errno::E2BIG)?;
            let filter = buffer.get(..count).ok_or(Errno::E2BIG)?;
            filters.push(filter.iter().map(|bytes| instruction(*bytes)).collect());
        }
        Err(Errno::E2BIG)
    }

    /// Whether all that the agent does is possible under them.
    pub(super) fn judge(&self) -> Result<(), Objection> {
        NEEDS.iter().try_for_each(|need| self.judge_one(need))
    }

    fn judge_one(&self, need: &Need) -> Result<(), Objection> {
        let call = need.name;
        let outcomes = self.outcomes(&need.call);
        for returned in outcomes.map_err(|reason| Objection::Unclear { call, reason: reason.to_string() })? {
            let what = match (Action::of(returned), need.weight) {
                (Action::Allow, _) | (Action::Errno(_), Weight::Tried) => continue,
                (Action::Errno(errno), Weight::Newest) if i32::from(errno) == libc::ENOSYS => continue,
                (Action::Errno(_), _) => "refuses",
                (Action::Ask, _) => "asks another process about",
                (Action::Trap, _) => "sends a signal for",
                (Action::Kill, _) => "kills for",
            };
            return Err(Objection::Call { call, what });
        }
        Ok(())
    }

    /// What can become of a call: where not all of it is known, several things.
    fn outcomes(&self, call: &Call) -> Result<Vec<u32>, BpfError> {
        // What the strictest of the filters says, for each that one of them may say.
        let mut outcomes = vec![0x7fff_0000];
        for filter in self.0.iter().rev() {
            let returned = bpf::run(filter, call)?;
            let mut next = Vec::new();
            for before in &outcomes {
                for now in &returned {
                    let both = bpf::stricter(*before, *now);
                    if !next.contains(&both) {
                        next.push(both);
                    }
                }
            }
            outcomes = next;
            if outcomes.len() > OUTCOMES {
                return Err(BpfError::Long);
            }
        }
        Ok(outcomes)
    }
}

/// `struct sock_filter`.
fn instruction([low, high, jt, jf, k @ ..]: [u8; 8]) -> Instruction {
    Instruction { code: u16::from_ne_bytes([low, high]), jt, jf, k: u32::from_ne_bytes(k) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    /// Answers one call in its own way, and all others with `rest`.
    fn one(number: i64, answer: u32, rest: u32) -> Vec<Instruction> {
        vec![op(0x20, 0, 0, 0), op(0x15, 0, 1, number as u32), op(6, 0, 0, answer), op(6, 0, 0, rest)]
    }

    const ALLOW: u32 = 0x7fff_0000;
    const LOG: u32 = 0x7ffc_0000;
    const KILL_PROCESS: u32 = 0x8000_0000;
    const ERRNO: u32 = 0x0005_0000;

    fn judged(filters: &[Vec<Instruction>]) -> String {
        match Filters(filters.to_vec()).judge() {
            Ok(()) => "fits".into(),
            Err(objection) => objection.to_string(),
        }
    }

    #[test]
    fn each_kind_of_answer_to_a_needed_call_is_told_apart() {
        assert_eq!(judged(&[]), "fits");
        assert_eq!(judged(&[one(libc::SYS_mmap, LOG, ALLOW)]), "fits");
        for (answer, expected) in [
            (KILL_PROCESS, "kills for mmap"),
            (0, "kills for mmap"),
            (0x1234_0000, "kills for mmap"),
            (0x0003_0000, "sends a signal for mmap"),
            (ERRNO | 1, "refuses mmap"),
            (0x7fc0_0000, "asks another process about mmap"),
            (0x7ff0_0000, "asks another process about mmap"),
        ] {
            let told = judged(&[one(libc::SYS_mmap, answer, ALLOW)]);
            assert!(told.contains(expected), "{answer:x}: {told}");
        }
    }

    #[test]
    fn a_call_with_a_fallback_may_be_refused_but_not_kill() {
        let clone3 = |answer| judged(&[one(libc::SYS_clone3, answer, ALLOW)]);
        assert_eq!(clone3(ERRNO | libc::ENOSYS as u32), "fits");
        // glibc falls back to `clone` for that number only.
        assert!(clone3(ERRNO | 1).contains("refuses clone3"));
        assert!(clone3(KILL_PROCESS).contains("kills for clone3"));
        assert_eq!(judged(&[one(libc::SYS_rseq, ERRNO | 1, ALLOW)]), "fits");
        assert!(judged(&[one(libc::SYS_rseq, 0, ALLOW)]).contains("kills for rseq"));
    }

    #[test]
    fn the_strictest_of_several_filters_counts_whatever_their_order() {
        let (free, kills) = (one(libc::SYS_mmap, ALLOW, ALLOW), one(libc::SYS_futex, KILL_PROCESS, ALLOW));
        for filters in [[free.clone(), kills.clone()], [kills, free]] {
            assert!(judged(&filters).contains("kills for futex"));
        }
        assert_eq!(
            judged(&[one(libc::SYS_reboot, 0, ALLOW), one(libc::SYS_kexec_load, 0, ALLOW)]),
            "fits",
            "calls that nobody needs"
        );
    }

    #[test]
    fn an_argument_that_is_not_known_may_be_any() {
        // Kills `ioctl` with one request, allows it with others.
        let filter = vec![
            op(0x20, 0, 0, 0),
            op(0x15, 0, 3, libc::SYS_ioctl as u32),
            op(0x20, 0, 0, 24),
            op(0x15, 0, 1, 0x5412),
            op(6, 0, 0, 0),
            op(6, 0, 0, ALLOW),
        ];
        assert!(judged(&[filter]).contains("kills for ioctl"));
    }

    #[test]
    fn a_filter_that_cannot_be_followed_is_an_objection() {
        for (filter, reason) in [
            (vec![op(0x20, 0, 0, 0)], "leaves its own end"),
            (vec![op(0x28, 0, 0, 0), op(6, 0, 0, ALLOW)], "instruction 0 is not known"),
            (vec![op(6, 0, 0, ALLOW); LENGTH + 1], "4097 instructions"),
        ] {
            let told = judged(&[filter]);
            assert!(told.contains(reason), "{told}");
        }
    }
}
