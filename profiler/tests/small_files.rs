//! Small files that unfold to gigabytes: every kind of record, and all of them together, takes bounded memory, and what
//! was left out is said.

#[path = "trace_support/unfolding.rs"]
mod unfolding;

use std::path::Path;
use std::process::{Command, Stdio};

use stallscope::trace::kind::Kind;
use stallscope::trace::read_all;
use unfolding::{PATTERNS, Pattern, file};

const LEN: usize = 64 << 10;
/// Bytes that an unfolded record is counted as, and room for all of them: `docs/trace-format.md`.
const RECORD: u64 = 192;
const FREE: u64 = 32 << 20;
const FACTOR: u64 = 64;
const RESIDENT_MIB: i64 = 256;

/// Most memory that a report on this file took, MiB.
#[expect(clippy::zombie_processes, reason = "`wait4` waits for it, and says what it used")]
fn resident_mib(trace: &Path) -> i64 {
    let child = Command::new(env!("CARGO_BIN_EXE_stallscope"))
        .args(["report".as_ref(), trace.as_os_str()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // SAFETY: an all-zero rusage is valid, and is filled in by the call.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let (pid, mut status) = (child.id().cast_signed(), 0);
    // SAFETY: both pointers are to locals; the child is ours and was not waited for.
    let ended = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    assert_eq!((ended, status), (pid, 0), "{}", trace.display());
    usage.ru_maxrss / 1024
}

fn check(kinds: &[Kind], pattern: Pattern, folder: &Path) {
    let what = format!("{:?} {pattern:?}", kinds.first().filter(|_| kinds.len() == 1));
    let bytes = file(kinds, pattern, LEN);
    let path = folder.join("small.stall");
    std::fs::write(&path, &bytes).unwrap();
    let (records, state) = read_all(&path).unwrap();
    let most = (FREE + FACTOR * bytes.len() as u64) / RECORD;
    assert!(records.len() as u64 <= most, "{what}: {} records", records.len());
    if pattern == Pattern::Same {
        let told = |line: &String| line.contains("more than a file of this length can hold");
        assert!(state.damage.iter().any(told), "{what}: {:?}", state.damage);
    }
    drop(records);
    let resident = resident_mib(&path);
    assert!(resident < RESIDENT_MIB, "{what}: {resident} MiB");
}

#[test]
fn a_small_file_of_any_kind_of_record_takes_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    for kind in Kind::ALL {
        check(&[*kind], Pattern::Same, folder.path());
    }
    for pattern in PATTERNS {
        check(Kind::ALL, pattern, folder.path());
    }
}
