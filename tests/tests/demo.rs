//! `stallscope demo`: the workload is recorded and the results say what it does.

use std::process::{Command, Stdio};

use serde_json::json;
use stallscope::demo::workload::{DEAD_NAME, LATENESS, SLOW_NAME};
use stallscope::demo::{SLOW_ANSWER, monotonic_ns};
use stallscope_tests::recorder::stallscope_binary;
use stallscope_tests::{assert_close, assert_close_to, finding, report, require_root, rows, sum};

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

    let dead = rows(&report, "dns", &[("name", json!(DEAD_NAME))]);
    assert_eq!((sum(&dead, "answered"), dead[0]["server"].as_str()), (0, Some("10.77.0.53:53")));
    // Its process does nothing else but for a tenth of a second of sleep in two.
    assert!(sum(&dead, "stalled_ns") > window * 9 / 10 && sum(&dead, "in_flight") <= 2);
    finding(&report, "dns.resolver_unreachable");

    let slow = rows(&report, "dns", &[("name", json!(SLOW_NAME)), ("qtype", json!("A"))]);
    assert_eq!(slow[0]["server"], "10.77.0.54:53");
    let answer = u64::try_from(SLOW_ANSWER.as_nanos()).unwrap();
    assert_close("slow answers", sum(&slow, "latency.p50_ns"), answer);
    finding(&report, "dns.slow");

    // The root waits for the late rank, and for no other.
    let root = rows(&report, "threads", &[("name", json!("rank0"))])[0];
    let from = |host: &str| {
        let waits = rows(&report, "sockets", &[("direction", json!("recv")), ("tid", root["tid"].clone())]);
        waits.into_iter().filter(|row| row["peer"].as_str().unwrap().starts_with(host)).collect::<Vec<_>>()
    };
    let late = from("10.77.0.4:");
    let lateness = u64::try_from(LATENESS.as_nanos()).unwrap();
    assert_close_to("each wait", sum(&late, "duration.p50_ns"), lateness, lateness / 10);
    assert_close_to("their share", sum(&late, "stalled_ns"), window * 6 / 10, window / 10);
    let others = sum(&from("10.77.0.2:"), "stalled_ns") + sum(&from("10.77.0.3:"), "stalled_ns");
    assert!(others < window / 10, "{others} ns for ranks that are not late");
}
