//! Views of the recorded traces under `traces/`, whole, against files. After a wanted change:
//! `STALLSCOPE_BLESS=1 cargo test -p stallscope --test stored_traces`, then read the diff.

mod golden;

use std::path::{Path, PathBuf};

use stallscope::analysis::{Analysis, AnalysisOptions, analyse_model};
use stallscope::cli::load::load_analysis;
use stallscope::model::Model;
use stallscope::render::flame::write_svg;
use stallscope::render::folded::write_folded;
use stallscope::render::html::write_html;
use stallscope::render::json::write_json;
use stallscope::render::text::write_report;
use stallscope::render::tree::{FlameOptions, View};
use stallscope::trace::TraceReader;

fn stored() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces");
    let mut traces: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "stall"))
        .collect();
    traces.sort();
    assert!(!traces.is_empty(), "no stored traces");
    traces
}

fn analysed(path: &Path) -> Analysis {
    let mut reader = TraceReader::open(path).unwrap();
    let model = Model::from_records(reader.by_ref());
    analyse_model(model, reader.state(), &AnalysisOptions::default())
}

fn view(path: &Path, ending: &str, write: impl FnOnce(&Analysis, &mut Vec<u8>)) {
    let mut out = Vec::new();
    write(&analysed(path), &mut out);
    let stem = path.file_stem().unwrap().to_str().unwrap();
    golden::assert_same(&format!("stored/{stem}.{ending}"), &out);
}

#[test]
fn every_stored_trace_is_complete_and_has_a_note() {
    let notes = include_str!("../../traces/README.md");
    for path in stored() {
        let analysis = analysed(&path);
        assert!(analysis.report.trace.complete, "{}: {:?}", path.display(), analysis.report.trace);
        assert!(notes.contains(path.file_name().unwrap().to_str().unwrap()), "{}", path.display());
    }
}

#[test]
fn reports_of_stored_traces_are_as_before() {
    for path in stored() {
        view(&path, "txt", |analysis, out| write_report(analysis, out).unwrap());
    }
}

#[test]
fn folded_stacks_of_stored_traces_are_as_before_and_sum_to_the_stalled_time() {
    for path in stored() {
        view(&path, "folded", |analysis, out| {
            write_folded(analysis, &FlameOptions::default(), out).unwrap();
            let text = std::str::from_utf8(out).unwrap();
            let sum: u64 =
                text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
            assert_eq!(sum, analysis.report.totals.stalled_ns);
        });
    }
}

#[test]
fn flame_graphs_of_stored_traces_are_as_before() {
    for path in stored() {
        view(&path, "svg", |analysis, out| write_svg(analysis, &FlameOptions::default(), out).unwrap());
    }
}

/// The command line reads in blocks, on several threads, and adds up stalls that look the same.
#[test]
fn the_command_line_shows_the_same_as_an_analysis_stall_by_stall() {
    let views = |analysis: &Analysis| {
        let (mut text, mut json, mut html) = (Vec::new(), Vec::new(), Vec::new());
        write_report(analysis, &mut text).unwrap();
        write_json(&analysis.report, &mut json).unwrap();
        write_html(analysis, &mut html).unwrap();
        let mut views = vec![text, json, html];
        for view in View::ALL {
            let mut out = Vec::new();
            write_svg(analysis, &FlameOptions { view, ..FlameOptions::default() }, &mut out).unwrap();
            views.push(out);
        }
        views.into_iter().map(|view| String::from_utf8(view).unwrap()).collect::<Vec<_>>()
    };
    for path in stored() {
        let (one_by_one, added_up) = (analysed(&path), load_analysis(&path, None).unwrap());
        assert!(added_up.stalls.is_empty() && added_up.merged.len() <= one_by_one.stalls.len());
        for (expected, actual) in views(&one_by_one).iter().zip(views(&added_up)) {
            assert!(*expected == actual, "{}", path.display());
        }
    }
}
