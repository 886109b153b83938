//! Waits for a reply of a peer in a known place: `frames PORT`.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

unsafe extern "C" {
    fn recv(fd: i32, buffer: *mut u8, length: usize, flags: i32) -> isize;
}

#[inline(never)]
fn inner(peer: &TcpStream) -> isize {
    let mut reply = [0; 8];
    // SAFETY: `reply` can be written to in all of its length.
    let got = unsafe { recv(peer.as_raw_fd(), reply.as_mut_ptr(), reply.len(), 0x100) };
    got + isize::from(reply[0])
}

struct Job<T> {
    peer: T,
}

impl Job<TcpStream> {
    #[inline(always)]
    fn inlined(&self, add: isize) -> isize {
        inner(&self.peer) + add
    }

    #[inline(never)]
    fn step(&self) -> isize {
        std::hint::black_box(self.inlined(3)) + 1
    }
}

#[inline(never)]
fn outer(job: &Job<TcpStream>) -> isize {
    std::hint::black_box(job.step()) + 1
}

fn main() {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).expect("a port");
    let mut job = Job { peer: TcpStream::connect(("127.0.0.1", port)).expect("connects") };
    let mut line = String::new();
    println!("ready");
    std::io::stdin().read_line(&mut line).expect("reads");
    job.peer.write_all(b"x").expect("sends");
    let got = std::hint::black_box(outer(&job));
    println!("done got={got}");
    while std::io::stdin().read_line(&mut line).is_ok_and(|len| len > 0) {}
}
