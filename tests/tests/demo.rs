//! `stallscope demo`: the workload is recorded and the results say what it does.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use stallscope::demo::workload::{DEAD_NAME, LATENESS, SLOW_NAME};
use stallscope::demo::{SLOW_ANSWER, SLOW_HOP, monotonic_ns};
use stallscope_tests::recorder::stallscope_binary;
use stallscope_tests::{assert_between, finding, report, require_root, rows, sum};

/// The three culprits, and notes about what follows from them.
#[track_caller]
fn assert_findings(report: &Value) {
    let all = report["findings"].as_array().unwrap();
    let named = |finding: &Value| {
        let (proof, text) = (&finding["proof"], |value: &Value| value.as_str().unwrap_or("").to_owned());
        let whom =
            if proof["server"].is_null() { text(&proof["far_end"]["comm"]) } else { text(&proof["server"]) };
        (text(&finding["severity"]), text(&finding["id"]), whom)
    };
    let found: BTreeSet<(String, String, String)> = all.iter().map(named).collect();
    let expected = |severity: &str, id: &str, whom: &str| (severity.into(), id.into(), whom.into());
    let wanted: BTreeSet<(String, String, String)> = [
        expected("critical", "dns.resolver_unreachable", "10.77.0.53:53"),
        expected("warning", "dns.slow", "10.77.0.54:53"),
        expected("warning", "net.slow_peer", "rank3"),
        // Ranks 1 and 2 wait for the root, which waits for rank 3.
        expected("info", "net.slow_peer", "rank0"),
        expected("info", "dns.retry_ladder", "10.77.0.53:53"),
    ]
    .into();
    // Whether a lookup is open for long enough when the recording stops is chance, and a busy machine makes jitter.
    // The slow hop has a test of its own.
    let by_chance = |(_, id, _): &(String, String, String)| {
        ["dns.still_waiting", "net.cross_rack_jitter", "net.cross_rack_latency"].contains(&id.as_str())
    };
    let found: BTreeSet<_> = found.into_iter().filter(|finding| !by_chance(finding)).collect();
    assert_eq!(found, wanted, "{all:#?}");
    let late = all.iter().find(|finding| finding["proof"]["far_end"]["comm"] == "rank3").unwrap();
    assert!(late["proof"]["peer"].as_str().unwrap().starts_with("10.77.0.4:"), "{late:#}");
    assert!(late["summary"].as_str().unwrap().starts_with("rank3 (pid "), "{late:#}");
}

/// Ranks 0 and 1 are in rack A, 2 and 3 in rack B, with a slow way between them.
#[track_caller]
fn assert_slow_hop(report: &Value, picture: &str) {
    let two_ways = 2 * u64::try_from(SLOW_HOP.as_nanos()).unwrap();
    let mut seen = BTreeSet::new();
    // The nearest across racks, and the farthest inside.
    let (mut nearest, mut farthest, mut samples) = (u64::MAX, 0, u64::MAX);
    for hop in report["hops"].as_array().unwrap() {
        let text = |field: &str| hop[field].as_str().unwrap_or("none").to_owned();
        let far = text("relation") == "cross-rack";
        assert!(!far || sum(&[hop], "rtt.min_ns") >= two_ways, "{hop:#}");
        seen.insert((text("peer"), text("rack"), text("relation")));
        samples = samples.min(sum(&[hop], "rtt.count"));
        let rtt = sum(&[hop], "rtt.p50_ns");
        if far {
            nearest = nearest.min(rtt);
        } else {
            farthest = farthest.max(rtt);
        }
    }
    let row = |peer: &str, rack: &str, relation: &str| (peer.into(), rack.into(), relation.into());
    let wanted = [
        row("10.77.0.1", "A", "cross-rack"),
        row("10.77.0.1", "A", "same-rack"),
        row("10.77.0.2", "A", "same-rack"),
        row("10.77.0.3", "B", "cross-rack"),
        row("10.77.0.4", "B", "cross-rack"),
    ];
    assert_eq!(seen, wanted.into());
    assert!(picture.contains(" rack B cross-rack"), "leaves say where the peer is");
    // A machine that is busy enough makes every hop slow, or leaves the recorder no time to look.
    if nearest >= 2 * farthest && samples >= 4 {
        let crossing = finding(report, "net.cross_rack_latency");
        assert_eq!(crossing["severity"], "warning", "{crossing:#}");
        assert!(crossing["proof"]["cross_rack_ns"].as_u64().unwrap() >= two_ways, "{crossing:#}");
    }
}

#[test]
fn the_demo_leaves_a_picture_a_report_and_a_trace() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let begin = monotonic_ns();
    let output = Command::new(stallscope_binary())
        .args(["demo", "-o"])
        .arg(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(monotonic_ns() - begin < 60_000_000_000, "a demo is short");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let picture = read("flame.svg");
    assert!(picture.contains("<svg") && picture.contains("dns.resolve") && picture.contains("gather_step"));
    let text = read("report.txt");
    assert!(text.contains(DEAD_NAME) && text.contains("rank0"), "{text}");

    let report = report(&folder.path().join("demo.stall"));
    assert_eq!(report["trace"]["complete"], true);
    let window = report["target"]["duration_ns"].as_u64().unwrap();

    // The query that was open when the recording began has a name only where it was sent again.
    let dead = rows(&report, "dns", &[("server", json!("10.77.0.53:53"))]);
    assert_eq!(sum(&dead, "answered"), 0);
    assert!(dead.iter().any(|row| row["name"] == DEAD_NAME), "{dead:#?}");
    // Its process does nothing else but for a tenth of a second of sleep in two.
    let told = sum(&dead, "stalled_ns") > window * 9 / 10 && sum(&dead, "in_flight") <= 2;
    assert!(told, "{:#} in {window} ns", report["dns"]);
    finding(&report, "dns.resolver_unreachable");

    let slow = rows(&report, "dns", &[("name", json!(SLOW_NAME)), ("qtype", json!("A"))]);
    assert_eq!(slow[0]["server"], "10.77.0.54:53");
    let answer = u64::try_from(SLOW_ANSWER.as_nanos()).unwrap();
    assert_between("slow answers", sum(&slow, "latency.p50_ns"), answer, answer * 3 / 2);
    finding(&report, "dns.slow");
    assert_findings(&report);
    // What a reader sees first.
    let first: Vec<&str> = text.lines().take(50).collect();
    for culprit in ["10.77.0.53:53 never answered", "10.77.0.54:53 answers late", "rank3 (pid "] {
        assert!(first.iter().any(|line| line.contains(culprit)), "{culprit} in {text}");
    }
    assert_slow_hop(&report, &picture);
    assert!(picture.contains(&format!("[dns.resolve] 10.77.0.53:53 {DEAD_NAME} A+AAAA no answer")));

    // The root waits for the late rank, and for no other.
    let root = rows(&report, "threads", &[("name", json!("rank0"))])[0];
    let from = |host: &str| {
        let waits = rows(&report, "sockets", &[("direction", json!("recv")), ("tid", root["tid"].clone())]);
        waits.into_iter().filter(|row| row["peer"].as_str().unwrap().starts_with(host)).collect::<Vec<_>>()
    };
    let late = from("10.77.0.4:");
    let lateness = u64::try_from(LATENESS.as_nanos()).unwrap();
    // The script makes six tenths of the window of it; a busy machine adds to what is around the waits.
    assert_between("each wait", sum(&late, "duration.p50_ns"), lateness, lateness * 3 / 2);
    assert_between("their share", sum(&late, "stalled_ns"), window * 4 / 10, window * 8 / 10);
    // Rank 2 is on time, behind the slow hop.
    let across = from("10.77.0.3:");
    let hop = sum(&across, "waits") * 2 * u64::try_from(SLOW_HOP.as_nanos()).unwrap();
    let others = sum(&from("10.77.0.2:"), "stalled_ns") + sum(&across, "stalled_ns").saturating_sub(hop);
    assert!(others < window / 10, "{others} ns for ranks that are not late");
}
