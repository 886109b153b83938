//! Verbs over two RDMA devices in software (`rdma_rxe`) with a wire between them, recorded.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::relay;
use super::rig::{self, Checks};

/// The program of `tests/vm/ring.c`.
static RING: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ring"));
const RING_PATH: &str = "/tmp/ring";

const ITERATIONS: u64 = 1000;
const RELAY: u16 = 18600;
const SERVER: u16 = 18515;

/// However much it costs: these tests are about what is seen.
const ANY_OVERHEAD: &[&str] = &["--max-overhead", "100000%"];

/// A program on the other side, ended in any case.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn check(checks: &mut Checks) {
    if !set_up(checks) {
        return;
    }
    // Half of them post through the extended interface, which is perftest's own choice.
    perftest(checks, "send-bw-default", "ib_send_bw", ITERATIONS, &[]);
    perftest(checks, "send-bw-each", "ib_send_bw", ITERATIONS, &["-Q", "1", "--use_old_post_send"]);
    perftest(checks, "write-bw-default", "ib_write_bw", ITERATIONS, &["--use_old_post_send"]);
    perftest(checks, "write-bw-each", "ib_write_bw", ITERATIONS, &["-Q", "1"]);
    ring(checks);
    far(checks);
    failures(checks);
}

/// Runs a program of the guest; whether it succeeded is an assertion.
fn run(checks: &mut Checks, line: &str) {
    let mut words = line.split(' ');
    let output =
        Command::new(words.next().unwrap_or_default()).args(words).output().expect("the guest has it");
    checks.that(line, output.status.success(), &String::from_utf8_lossy(&output.stderr));
}

/// Two devices, and routes that lead over the wire though both ends are of one machine.
fn set_up(checks: &mut Checks) -> bool {
    // No shell: the guest's has an `ip` of its own, which knows no veth.
    run(checks, "ip link add va type veth peer name vb");
    run(checks, "ip addr add 10.99.0.1/32 dev va");
    run(checks, "ip addr add 10.99.0.2/32 dev vb");
    run(checks, "ip link set va up");
    run(checks, "ip link set vb up");
    for device in ["all", "va", "vb"] {
        for (name, value) in [("accept_local", "1"), ("rp_filter", "0")] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{device}/{name}"), value).expect("is writable");
        }
    }
    run(checks, "ip rule add pref 10 iif lo to 10.99.0.2 lookup 51");
    run(checks, "ip rule add pref 11 iif lo to 10.99.0.1 lookup 52");
    run(checks, "ip rule add pref 100 lookup local");
    run(checks, "ip rule del pref 0");
    run(checks, "ip route add 10.99.0.2 dev va src 10.99.0.1 table 51");
    run(checks, "ip route add 10.99.0.1 dev vb src 10.99.0.2 table 52");
    for (address, device, of) in [("10.99.0.2", "va", "vb"), ("10.99.0.1", "vb", "va")] {
        let mac = std::fs::read_to_string(format!("/sys/class/net/{of}/address")).unwrap_or_default();
        run(checks, &format!("ip neigh replace {address} lladdr {} dev {device}", mac.trim()));
    }
    run(checks, "rdma link add rxe0 type rxe netdev va");
    run(checks, "rdma link add rxe1 type rxe netdev vb");
    let ring = std::fs::write(RING_PATH, RING).is_ok() && !RING.is_empty();
    checks.that("the ring was compiled", ring, &"cc or libibverbs-dev was missing");
    let _ = Command::new("chmod").args(["755", RING_PATH]).status();
    // An address becomes an entry of the device's table a moment after the device is there.
    let has = |device: &str, entry: &str| {
        let path = format!("/sys/class/infiniband/{device}/ports/1/gids/1");
        std::fs::read_to_string(path).is_ok_and(|text| text.contains(entry))
    };
    let there = || has("rxe0", "0a63:0001") && has("rxe1", "0a63:0002");
    for _ in 0..100 {
        if there() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    checks.that("the devices have their addresses", there(), &"no entry");
    ring && there()
}

/// A program of perftest whose client is recorded from its first instruction: requests that the recording retired must be its
/// iterations.
fn perftest(
    checks: &mut Checks,
    name: &str,
    program: &str,
    iterations: u64,
    more: &[&str],
) -> Option<(String, Value)> {
    let count = iterations.to_string();
    let mut arguments = vec!["-x", "1", "-n", &count, "-s", "1024", "-F"];
    arguments.extend(more);
    let server = Command::new(program)
        .args(["-d", "rxe0"])
        .args(&arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let Ok(server) = server else {
        checks.that(&format!("{program} starts"), false, &"no program");
        return None;
    };
    let _server = Server(server);
    if !listens() || relay::start(RELAY, SERVER).is_err() {
        checks.that(&format!("{program} listens"), false, &"not after a minute");
        return None;
    }
    let path = format!("/bin/{program}");
    let port = RELAY.to_string();
    let mut command = vec![path.as_str(), "-d", "rxe1", "-p", &port];
    command.extend(&arguments);
    command.push("127.0.0.1");
    let (said, report) = rig::record(checks, name, ANY_OVERHEAD, &command)?;
    let ran = said.lines().any(|line| line.split_whitespace().nth(1) == Some(&count));
    checks.that(&format!("{name}: perftest did its iterations"), ran, &said);
    let queue = queue(checks, name, &report)?;
    let [posted, completed, in_flight] =
        ["posted", "completed", "in_flight"].map(|figure| queue[figure].clone());
    checks.equal(&format!("{name}: requests posted"), &posted, iterations);
    checks.equal(&format!("{name}: requests retired"), &completed, iterations);
    checks.equal(&format!("{name}: requests in flight"), &in_flight, 0);
    checks.equal(&format!("{name}: bytes"), &queue["bytes"], iterations * 1024);
    checks.that(&format!("{name}: the peer is known"), queue["peer_qp"].is_u64(), &queue);
    checks.that(&format!("{name}: its GID"), queue["peer_gid"] == "::ffff:10.99.0.1", &queue["peer_gid"]);
    Some((said, report))
}

/// The only queue pair that was posted to; that it was watched is an assertion.
fn queue(checks: &mut Checks, name: &str, report: &Value) -> Option<Value> {
    let row = rig::coverage(report, "verbs");
    checks.that(&format!("{name}: verbs are watched"), row["state"] == "on", row);
    let queues = report["queues"].as_array().cloned().unwrap_or_default();
    let used: Vec<&Value> = queues.iter().filter(|queue| queue["posted"] != 0).collect();
    let found = match used.as_slice() {
        [one] => Some((*one).clone()),
        _ => None,
    };
    checks.that(&format!("{name}: one queue pair was used"), found.is_some(), &report["queues"]);
    found
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// Our own program, attached to before its start and in mid-run.
fn ring(checks: &mut Checks) {
    let script = format!("(sleep 3; echo; sleep 1) | {RING_PATH} rxe1 rxe0 1 wr write line 1x100x1 8x400x4");
    let recorded = rig::record(checks, "ring", ANY_OVERHEAD, &["/bin/sh", "-c", &script]);
    if let Some((said, report)) = recorded {
        of_ring(checks, "ring", &said, &report);
    }
    // Requests come before the watch, too.
    let phases = ["4x52x1", "line", "1x100x1", "8x400x4", "line"];
    for way in ["wr", "post"] {
        let name = format!("ring-{way}-mid-run");
        if let Some((said, report)) = attached(checks, &name, way, "write", &phases, || ()) {
            of_ring(checks, &name, &said, &report);
        }
    }
}

fn of_ring(checks: &mut Checks, name: &str, said: &str, report: &Value) {
    let Some(queue) = queue(checks, name, report) else { return };
    checks.equal(&format!("{name}: requests posted"), &queue["posted"], 500);
    checks.equal(&format!("{name}: requests retired"), &queue["completed"], 500);
    checks.equal(&format!("{name}: bytes"), &queue["bytes"], 500 * 1024);
    // 100 single ones, and 100 groups of four. The first one alone does not tell whether the ids differ.
    let times = number(&queue["post_to_completion"]["count"]);
    checks.that(&format!("{name}: 199 or 200 times"), (199..=200).contains(&times), &times);
    checks.that(&format!("{name}: wire is known"), queue["wire_ns"].is_u64(), &queue);
    let gid = &queue["peer_gid"];
    if !name.contains("mid") {
        checks.that(&format!("{name}: the peer's GID"), *gid == "::ffff:10.99.0.1", gid);
    }
    println!(
        "vm-guest: {name}: {said}: wire {} p50 {}",
        queue["wire_ns"], queue["post_to_completion"]["p50_ns"]
    );
}

/// Records the ring from its first `line` on, with a change of the wire before it goes on.
fn attached(
    checks: &mut Checks,
    name: &str,
    way: &str,
    operation: &str,
    phases: &[&str],
    before: impl FnOnce(),
) -> Option<(String, Value)> {
    let mut program = Command::new(RING_PATH)
        .args(["rxe1", "rxe0", "1", way, operation])
        .args(phases)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let (mut input, output) = (program.stdin.take()?, BufReader::new(program.stdout.take()?));
    let pid = program.id().to_string();
    let mut program = Server(program);
    let mut lines = output.lines().map_while(Result::ok);
    lines.next().filter(|line| line.starts_with("ready"))?;
    // What it does before the line takes a moment.
    std::thread::sleep(Duration::from_secs(1));
    let trace = format!("/tmp/{name}.stall");
    let mut recorder = Command::new("stallscope")
        .args(["record", "--pid", &pid, "-o", &trace, "-d", "120s"])
        .args(ANY_OVERHEAD)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut errors = BufReader::new(recorder.stderr.take()?).lines().map_while(Result::ok);
    let opened = errors.any(|line| line.contains(&trace));
    checks.that(&format!("{name}: the window opens"), opened, &"no line");
    before();
    input.write_all(b"\n").ok()?;
    let said = if phases.last() == Some(&"line") {
        // It has done everything when it waits again; it ends after the queue was empty for long.
        std::thread::sleep(Duration::from_secs(4));
        input.write_all(b"\n").ok()?;
        lines.next()?
    } else {
        lines.next()?
    };
    let _ = program.0.wait();
    let rest: Vec<String> = errors.collect();
    let status = recorder.wait().ok()?;
    checks.that(&format!("{name}: recorded"), status.success(), &rest.join("; "));
    let report = rig::stallscope(checks, &["report", &trace, "--format", "json"])?;
    Some((said, report))
}

/// 2 ms each way.
fn far(checks: &mut Checks) {
    let near = perftest(checks, "read-lat-near", "ib_read_lat", 200, &["--use_old_post_send"]);
    run(checks, "tc qdisc add dev va root netem delay 2ms");
    run(checks, "tc qdisc add dev vb root netem delay 2ms");
    let far = perftest(checks, "read-lat-far", "ib_read_lat", 200, &["--use_old_post_send"]);
    run(checks, "tc qdisc del dev va root");
    run(checks, "tc qdisc del dev vb root");
    let (Some((_, near)), Some((said, far))) = (near, far) else { return };
    let row = |report: &Value| {
        let queues = report["queues"].as_array().cloned().unwrap_or_default();
        queues.into_iter().find(|queue| queue["posted"] != 0).unwrap_or_default()
    };
    let (near, far) = (row(&near), row(&far));
    let p50_ns = number(&far["post_to_completion"]["p50_ns"]) as f64;
    let fields = said.lines().find(|line| line.split_whitespace().nth(1) == Some("200"));
    // Bytes, iterations, the least, the most, the typical one, in microseconds; of reads the whole round trip.
    let typical = fields.and_then(|line| line.split_whitespace().nth(4)?.parse::<f64>().ok()).unwrap_or(0.0);
    let seen = format!("recorded {p50_ns} ns, perftest {typical} us");
    let close = (p50_ns - typical * 1e3).abs() <= typical * 100.0;
    checks.that("read-lat-far: within 10 % of what perftest says", typical > 0.0 && close, &seen);
    let (near_ns, far_ns) = (number(&near["read_wire_ns"]), number(&far["read_wire_ns"]));
    let added_ns = far_ns.saturating_sub(near_ns) as f64;
    let seen = format!("{near_ns} ns and {far_ns} ns, perftest {typical} us");
    // A busy machine adds to the delay; then perftest's own median is longer, too.
    let most_ns = (4.4e6_f64).max(typical * 1e3);
    checks.that(
        "read-lat-far: the delay is in the wire, 4 ms less 10 % at least, and no more than perftest waited",
        near_ns > 0 && (3.6e6..=most_ns).contains(&added_ns),
        &seen,
    );
    checks.equal("read-lat-far: nothing waits behind others at depth one", &far["queue"]["sum_ns"], 0);
}

/// What a peer that is gone, or that has no receives, looks like; and a wire that is too slow for what is posted.
fn failures(checks: &mut Checks) {
    let failed =
        |checks: &mut Checks, name: &str, operation: &str, cut: bool, status: &str, finding: &str| {
            let wire = || {
                if cut {
                    let _ =
                        Command::new("tc").args("qdisc add dev va root netem loss 100%".split(' ')).status();
                }
            };
            let recorded = attached(checks, name, "post", operation, &["line", "4x8x1"], wire);
            let _ =
                Command::new("tc").args("qdisc del dev va root".split(' ')).stderr(Stdio::null()).status();
            let Some((said, report)) = recorded else {
                checks.that(&format!("{name}: ran"), false, &"no report");
                return;
            };
            let Some(queue) = queue(checks, name, &report) else { return };
            checks.equal(&format!("{name}: {status}"), &queue["errors"][status], 1);
            checks.equal(&format!("{name}: flushed"), &queue["flushed"], 3);
            let findings = report["findings"].as_array().cloned().unwrap_or_default();
            let found = findings.iter().find(|one| one["id"] == finding).cloned().unwrap_or_default();
            checks.that(
                &format!("{name}: {finding} names the queue pair"),
                found["proof"]["qp"] == queue["qp"],
                &said,
            );
        };
    failed(checks, "dead-peer", "write", true, "RETRY_EXC_ERR", "rdma.retry");
    failed(checks, "no-receive", "send", false, "RNR_RETRY_EXC_ERR", "rdma.rnr");
    let slow = || {
        let line = "qdisc add dev vb root netem rate 20mbit";
        let _ = Command::new("tc").args(line.split(' ')).status();
    };
    let recorded = attached(checks, "slow-wire", "wr", "write", &["line", "1x40x1", "16x320x1"], slow);
    run(checks, "tc qdisc del dev vb root");
    let Some((_, report)) = recorded else { return };
    let Some(queue) = queue(checks, "slow-wire", &report) else { return };
    checks.equal("slow-wire: depth", &queue["max_depth"], 16);
    let [waited, sent, all] =
        ["queue", "transmit", "post_to_completion"].map(|part| number(&queue[part]["sum_ns"]));
    // Sixteen at a time: nearly all of their time they wait behind each other.
    checks.that("slow-wire: it shows as waiting behind others", waited > all / 2 && waited > sent, &queue);
}

/// Whether perftest's port is listened on, at the latest after a minute.
fn listens() -> bool {
    // The port and the state LISTEN, as the kernel's table writes them.
    let end = format!(":{SERVER:04X}");
    let listening = |table: &str| {
        std::fs::read_to_string(table).is_ok_and(|text| {
            text.lines().any(|line| {
                let mut words = line.split_whitespace().skip(1);
                words.next().is_some_and(|local| local.ends_with(&end)) && words.nth(1) == Some("0A")
            })
        })
    };
    for _ in 0..600 {
        if listening("/proc/net/tcp") || listening("/proc/net/tcp6") {
            return true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    false
}
