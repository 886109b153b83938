//! A receiver whose peer is late by a script, with values.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::rig::{self, Checks};

const TIMES: u64 = 5;
const LATE: Duration = Duration::from_millis(200);

/// The recorded program: asks and waits, and prints how long it waited by its own clock.
pub fn receive(peer: &str, times: u64) {
    let mut stream = TcpStream::connect(peer).expect("the peer listens");
    let mut waited = 0;
    for _ in 0..times {
        stream.write_all(b"?").expect("the peer reads");
        let start = Instant::now();
        stream.read_exact(&mut [0]).expect("the peer answers");
        waited += start.elapsed().as_nanos();
    }
    println!("waited_ns={waited}");
}

/// Answers each byte late; how long it was late in all, by its own clock.
fn peer(listener: &TcpListener) -> std::io::Result<u64> {
    let (mut stream, _) = listener.accept()?;
    let mut late = 0;
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 {
        let start = Instant::now();
        std::thread::sleep(LATE);
        late += start.elapsed().as_nanos() as u64;
        stream.write_all(&byte)?;
    }
    Ok(late)
}

pub fn check(checks: &mut Checks) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is up");
    let address = listener.local_addr().expect("is bound").to_string();
    let peer = std::thread::spawn(move || peer(&listener));
    let recorded =
        rig::record(checks, "sockets", &[], &["/bin/vm-guest", "receive", &address, &TIMES.to_string()]);
    let Some((said, report)) = recorded else { return };
    let Ok(Ok(late)) = peer.join() else {
        checks.that("the peer served", false, &said);
        return;
    };
    let waited: Option<u64> = said.lines().find_map(|line| line.strip_prefix("waited_ns=")?.parse().ok());
    let rows = report["sockets"].as_array().cloned().unwrap_or_default();
    let Some(row) = rows.iter().find(|row| row["peer"] == address.as_str() && row["direction"] == "recv")
    else {
        checks.that("a row of the socket", false, &report["sockets"]);
        return;
    };
    checks.equal("sockets: waits", &row["waits"], TIMES);
    checks.equal("sockets: waits under way at the end", &row["in_flight"], 0);
    let stalled = row["stalled_ns"].as_u64().unwrap_or_default();
    // The program measured around its calls, so it saw all of each wait.
    checks.that(
        "sockets: no more than the program waited",
        waited.is_some_and(|most| stalled <= most),
        &format!("{stalled}, program {waited:?}"),
    );
    // A receiver that is kept from its call may miss some of the peer's sleep, half of it never.
    checks.that(
        "sockets: the peer's lateness is in it",
        stalled >= late / 2,
        &format!("{stalled}, peer {late}"),
    );
    checks.equal("sockets: calls of recvfrom", &report["coverage"]["syscalls_seen"]["recvfrom"], TIMES);
    let lost = &report["coverage"]["lost_events"];
    checks.equal("sockets: lost events", lost, 0);
}
