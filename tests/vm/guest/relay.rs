//! Carries the bytes of a TCP connection on, late: perftest's two sides agree over one before they post.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// By so much each piece is late: time for a recorder that shares two emulated processors to look at what was set up.
const LATE: Duration = Duration::from_millis(400);

/// Serves one connection to `from` by one to `to`.
pub fn start(from: u16, to: u16) -> std::io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", from))?;
    std::thread::spawn(move || -> std::io::Result<()> {
        let (client, _) = listener.accept()?;
        let server = TcpStream::connect(("127.0.0.1", to))?;
        let back = (server.try_clone()?, client.try_clone()?);
        std::thread::spawn(move || carry(back.0, back.1, LATE));
        carry(client, server, Duration::ZERO)
    });
    Ok(())
}

fn carry(mut from: TcpStream, mut to: TcpStream, late: Duration) -> std::io::Result<()> {
    let mut piece = [0; 4096];
    loop {
        let len = from.read(&mut piece)?;
        if len == 0 {
            return to.shutdown(std::net::Shutdown::Write);
        }
        std::thread::sleep(late);
        to.write_all(&piece[..len])?;
    }
}
