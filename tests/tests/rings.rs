//! What lies behind rings of `io_uring` is not seen: said where a process has one, and only there.

use serde_json::Value;
use stallscope_tests::compiled::Compiled;
use stallscope_tests::{Program, Recorder, require_root};

fn ring_row(report: &Value) -> Option<&Value> {
    let probes = report["coverage"]["probes"].as_array().unwrap();
    probes.iter().find(|row| row["family"] == "io_uring")
}

#[test]
fn a_ring_is_told_whenever_it_was_made_and_none_where_there_is_none() {
    require_root();
    let programs = Compiled::new();
    let path = programs.build("cc", "names.c", "names", &[]);
    for (when, there) in [("early", true), ("late", true), ("short", true), ("never", false)] {
        let mut program = Program::start_command(std::process::Command::new(&path).args(["ring", when]));
        let recording = Recorder::new().pid(program.pid()).start();
        let values = program.run();
        assert_eq!(values.get::<i32>("fd") >= 0, there, "this kernel has io_uring");
        let report = recording.finish().report();
        let row = ring_row(&report);
        assert_eq!(row.is_some(), there, "{when}: {:#}", report["coverage"]["probes"]);
        assert!(row.is_none_or(|row| row["state"] == "partial"), "{when}: {row:?}");
    }
}
