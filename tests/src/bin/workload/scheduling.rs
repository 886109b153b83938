//! Threads that hold locks, wait for them, or work.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::sys::{connected_to_itself, monotonic_ns, readable_bytes, recv, send};
use super::{Arguments, cpu_times, done, go, ready};

/// glibc's own mutex: Rust's does not say who holds it.
struct PthreadMutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex is made to be shared.
unsafe impl Sync for PthreadMutex {}
// SAFETY: it does not move once it is in its `Arc`.
unsafe impl Send for PthreadMutex {}

impl PthreadMutex {
    fn lock(&self) {
        // SAFETY: initialised, and alive as long as `self`.
        assert_eq!(unsafe { libc::pthread_mutex_lock(self.0.get()) }, 0);
    }

    fn unlock(&self) {
        // SAFETY: as above, and held by this thread.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(self.0.get()) }, 0);
    }
}

fn own_tid() -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() }
}

/// `mutex MS TIMES`: a second thread holds a mutex while the first one waits for it, again and again.
pub fn mutex(arguments: &Arguments) {
    let (held, times): (u64, u32) = (arguments.get(0), arguments.get(1));
    let mutex = Arc::new(PthreadMutex(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)));
    let (taken, is_taken) = channel();
    let (asked, is_asked) = channel::<()>();
    let holder = {
        let mutex = Arc::clone(&mutex);
        std::thread::Builder::new().name("holder".to_owned()).spawn(move || {
            while is_asked.recv().is_ok() {
                mutex.lock();
                taken.send(()).expect("the first thread listens");
                std::thread::sleep(Duration::from_millis(held));
                mutex.unlock();
            }
        })
    };
    ready("");
    go();
    let (before, mut waited_ns) = (cpu_times(), 0);
    for _ in 0..times {
        asked.send(()).expect("the holder listens");
        is_taken.recv().expect("the holder takes it");
        let from = monotonic_ns();
        mutex.lock();
        waited_ns += monotonic_ns() - from;
        mutex.unlock();
    }
    let after = cpu_times();
    drop(asked);
    holder.expect("starts").join().expect("ends");
    // Of what it waited, at most this was no waiting for the lock.
    let other_ns = after.0 - before.0 + after.1 - before.1;
    done(&format!("waited_ns={waited_ns} other_ns={other_ns}"));
}

/// `work CPU MS`: computes on this processor for so long.
pub fn work(arguments: &Arguments) {
    let (cpu, ms): (usize, u64) = (arguments.get(0), arguments.get(1));
    let mut set = nix::sched::CpuSet::new();
    set.set(cpu).expect("a processor");
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).expect("may run there");
    ready(&format!("tid={}", own_tid()));
    go();
    let (before, from) = (cpu_times(), Instant::now());
    while from.elapsed() < Duration::from_millis(ms) {
        std::hint::spin_loop();
    }
    let after = cpu_times();
    done(&format!("running_ns={} runnable_ns={}", after.0 - before.0, after.1 - before.1));
}

/// `copy BYTES TIMES`: sends that much to itself and takes it back, each in one call that copies and never sleeps.
/// Counts the receiving calls that took longer than 200 us by this program's own clock.
pub fn copy(arguments: &Arguments) {
    let (bytes, times): (usize, u32) = (arguments.get(0), arguments.get(1));
    let (sender, receiver) = connected_to_itself(8 * bytes as i32);
    let mut buffer = vec![7; bytes];
    ready("");
    go();
    let (mut long, mut ns) = (0, 0);
    for _ in 0..times {
        assert_eq!(send(sender, &buffer), bytes as isize, "all of it has room");
        while readable_bytes(receiver) < bytes {
            std::hint::spin_loop();
        }
        let start = monotonic_ns();
        assert_eq!(recv(receiver, &mut buffer, 0), bytes as isize);
        let took = monotonic_ns() - start;
        long += u32::from(took > 200_000);
        ns += took;
    }
    done(&format!("long={long} ns={ns}"));
}
