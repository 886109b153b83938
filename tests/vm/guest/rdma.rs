//! perftest over an RDMA device in software (`rdma_rxe`), recorded.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::rig::{self, Checks};

const ITERATIONS: u64 = 1000;
const ADDRESS: &str = "10.99.0.1";

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
    let set_up = [
        "ip link add va type veth peer name vb",
        "ip addr add 10.99.0.1/24 dev va",
        "ip link set va up",
        "ip link set vb up",
        "rdma link add rxe0 type rxe netdev va",
    ];
    for line in set_up {
        // No shell: the guest's has an `ip` of its own, which knows no veth.
        let mut words = line.split(' ');
        let output =
            Command::new(words.next().unwrap_or_default()).args(words).output().expect("the guest has it");
        checks.that(line, output.status.success(), &String::from_utf8_lossy(&output.stderr));
    }
    // The address becomes an entry of the device's table a moment after the device is there.
    let gid = "/sys/class/infiniband/rxe0/ports/1/gids/1";
    let mut entry = String::new();
    for _ in 0..100 {
        entry = std::fs::read_to_string(gid).unwrap_or_default();
        if entry.contains("0a63:0001") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    checks.that("rxe0 has the address in its table", entry.contains("0a63:0001"), &entry);
    for (name, moderation) in [("default", &[][..]), ("each", &["-Q", "1"][..])] {
        send_bw(checks, name, moderation);
    }
}

/// `ib_send_bw`: requests that the recording retired must be perftest's iterations.
fn send_bw(checks: &mut Checks, name: &str, moderation: &[&str]) {
    let iterations = ITERATIONS.to_string();
    let mut arguments =
        vec!["-d", "rxe0", "-x", "1", "-n", &iterations, "-s", "1024", "-F", "--use_old_post_send"];
    arguments.extend(moderation);
    let server =
        Command::new("ib_send_bw").args(&arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let Ok(server) = server else {
        checks.that("ib_send_bw starts", false, &"no program");
        return;
    };
    let _server = Server(server);
    if !listens() {
        checks.that("ib_send_bw listens", false, &"not after a minute");
        return;
    }
    let mut command = vec!["/bin/ib_send_bw"];
    command.extend(&arguments);
    command.push(ADDRESS);
    let name = format!("send-bw-{name}");
    let recorded = rig::record(checks, &name, &["--max-overhead", "100000%"], &command);
    let Some((said, report)) = recorded else { return };
    let ran = said.lines().any(|line| line.split_whitespace().nth(1) == Some(&iterations));
    checks.that(&format!("{name}: perftest did its iterations"), ran, &said);
    queue(checks, &name, &report);
}

fn queue(checks: &mut Checks, name: &str, report: &Value) {
    let row = rig::coverage(report, "verbs");
    println!("vm-guest: {name}: coverage {row}");
    let queues = report["queues"].as_array().cloned().unwrap_or_default();
    let [queue] = queues.as_slice() else {
        // No figure may stand for what was not seen, and the reason must.
        let reason = row["reason"].as_str().unwrap_or_default();
        checks.that(
            &format!("{name}: without queue pairs the coverage says why"),
            row["state"] != "on" && !reason.is_empty(),
            row,
        );
        Checks::not_supported(&format!("{name}: queue pairs of rxe: {reason}"));
        return;
    };
    checks.that(&format!("{name}: device"), queue["device"] == "rxe0", queue);
    if row["state"] != "on" {
        // The queue pair was found; what it did was not watched, which both places have to say.
        let reason = row["reason"].as_str().unwrap_or_default();
        checks.that(&format!("{name}: the coverage says why nothing was watched"), !reason.is_empty(), row);
        checks.that(&format!("{name}: share that was watched is 0"), queue["sampled_share"] == 0.0, queue);
        Checks::not_supported(&format!("{name}: requests of rxe: {reason}"));
        return;
    }
    checks.equal(&format!("{name}: requests posted"), &queue["posted"], ITERATIONS);
    checks.equal(&format!("{name}: requests retired"), &queue["completed"], ITERATIONS);
    checks.equal(&format!("{name}: requests in flight"), &queue["in_flight"], 0);
}

/// Whether perftest's port is listened on, at the latest after a minute.
fn listens() -> bool {
    // Port 18515 and the state LISTEN, as the kernel's table writes them.
    let listening = |table: &str| {
        std::fs::read_to_string(table).is_ok_and(|text| {
            text.lines().any(|line| {
                let mut words = line.split_whitespace().skip(1);
                words.next().is_some_and(|local| local.ends_with(":4853")) && words.nth(1) == Some("0A")
            })
        })
    };
    for _ in 0..600 {
        if listening("/proc/net/tcp") || listening("/proc/net/tcp6") {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    false
}
