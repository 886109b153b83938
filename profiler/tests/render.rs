//! Whole outputs of the renderers against files. After a wanted change:
//! `STALLSCOPE_BLESS=1 cargo test -p stallscope --test render`, then read the diff.

#[path = "render/fixture.rs"]
mod fixture;
mod golden;

use stallscope::analysis::Analysis;
use stallscope::analysis::report::{CollectiveRow, Distribution};
use stallscope::model::cause::Cause;
use stallscope::render::flame::write_svg;
use stallscope::render::folded::write_folded;
use stallscope::render::html::write_html;
use stallscope::render::json::write_json;
use stallscope::render::text::{TextOptions, write_report_with, write_summary, write_summary_with};
use stallscope::render::tree::{FlameOptions, View};

fn of_view(view: View) -> FlameOptions {
    FlameOptions { view, ..FlameOptions::default() }
}

fn folded(analysis: &Analysis, options: &FlameOptions) -> String {
    let mut out = Vec::new();
    write_folded(analysis, options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn svg(analysis: &Analysis, options: &FlameOptions) -> Vec<u8> {
    let mut out = Vec::new();
    write_svg(analysis, options, &mut out).unwrap();
    out
}

fn weight(folded: &str) -> u64 {
    folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[test]
fn folded_output_is_as_recorded() {
    let analysis = fixture::training();
    for view in View::ALL {
        golden::assert_same(
            &format!("render/training.{view}.folded"),
            folded(&analysis, &of_view(view)).as_bytes(),
        );
    }
    let options = FlameOptions { kernel: true, cause: Some(Cause::DnsResolve), ..FlameOptions::default() };
    golden::assert_same("render/training.kernel.folded", folded(&analysis, &options).as_bytes());
    golden::assert_same(
        "render/hostile.folded",
        folded(&fixture::hostile(), &FlameOptions::default()).as_bytes(),
    );
}

#[test]
fn folded_weights_add_up_to_the_stalled_total() {
    let analysis = fixture::training();
    for view in View::ALL {
        assert_eq!(weight(&folded(&analysis, &of_view(view))), analysis.report.totals.stalled_ns, "{view}");
    }
}

#[test]
fn every_folded_line_is_frames_and_one_weight() {
    for view in View::ALL {
        for line in folded(&fixture::hostile(), &of_view(view)).lines() {
            let (stack, weight) = line.rsplit_once(' ').unwrap();
            assert!(weight.bytes().all(|byte| byte.is_ascii_digit()), "{line}");
            assert!(stack.split(';').all(|frame| !frame.is_empty() && frame == frame.trim()), "{line}");
            assert!(!stack.starts_with("# ") && !stack.chars().any(char::is_control), "{line}");
        }
    }
}

#[test]
fn flame_graphs_are_as_recorded() {
    let analysis = fixture::training();
    for view in View::ALL {
        golden::assert_same(&format!("render/training.{view}.svg"), &svg(&analysis, &of_view(view)));
    }
    golden::assert_same("render/quiet.svg", &svg(&fixture::quiet(), &FlameOptions::default()));
    golden::assert_same("render/hostile.svg", &svg(&fixture::hostile(), &FlameOptions::default()));
}

#[test]
fn a_flame_graph_shows_every_stalled_nanosecond() {
    for analysis in [fixture::training(), fixture::hostile()] {
        let text = String::from_utf8(svg(&analysis, &FlameOptions::default())).unwrap();
        let total = format!("total_samples=\"{}\"", analysis.report.totals.stalled_ns);
        assert!(text.contains(&total), "{total}");
    }
}

#[test]
fn the_json_report_is_as_recorded() {
    let report = fixture::training().report;
    let mut out = Vec::new();
    write_json(&report, &mut out).unwrap();
    golden::assert_same("render/training.json", &out);
    assert_eq!(serde_json::from_slice::<stallscope::analysis::report::Report>(&out).unwrap(), report);
}

fn report(analysis: &Analysis, colour: bool) -> String {
    let mut out = Vec::new();
    write_report_with(analysis, TextOptions { colour, ..TextOptions::default() }, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn summary(analysis: &Analysis) -> String {
    let mut out = Vec::new();
    write_summary(analysis, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// As for a terminal of 100 columns.
fn narrow_summary(analysis: &Analysis) -> String {
    let mut out = Vec::new();
    let options = TextOptions { columns: Some(100), ..TextOptions::default() };
    write_summary_with(analysis, options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn text_reports_are_as_recorded() {
    golden::assert_same("render/training.txt", report(&fixture::training(), false).as_bytes());
    golden::assert_same("render/training.colour.txt", report(&fixture::training(), true).as_bytes());
    golden::assert_same("render/quiet.txt", report(&fixture::quiet(), false).as_bytes());
    golden::assert_same("render/hostile.txt", report(&fixture::hostile(), false).as_bytes());
    golden::assert_same("render/empty.txt", report(&Analysis::default(), false).as_bytes());
}

#[test]
fn summaries_are_as_recorded() {
    golden::assert_same("render/training.summary.txt", summary(&fixture::training()).as_bytes());
    golden::assert_same("render/quiet.summary.txt", summary(&fixture::quiet()).as_bytes());
    golden::assert_same("render/hostile.summary.txt", summary(&fixture::hostile()).as_bytes());
}

#[test]
fn text_fits_its_page_and_holds_no_control_characters() {
    for analysis in [fixture::training(), fixture::hostile(), fixture::quiet(), Analysis::default()] {
        for text in [report(&analysis, false), narrow_summary(&analysis)] {
            for line in text.lines() {
                assert!(line.chars().count() <= 100, "{line}");
                assert!(!line.chars().any(char::is_control), "{line:?}");
            }
        }
    }
}

#[test]
fn a_summary_has_at_most_15_lines() {
    let mut analysis = fixture::hostile();
    for number in 0..50 {
        let finding = analysis.report.findings[0].clone();
        analysis.report.findings.push(finding);
        let mut stall = analysis.stalls[0].clone();
        stall.tid = 5000 + number;
        analysis.stalls.push(stall);
    }
    let kernel = Distribution::of(vec![1000]);
    analysis.report.collectives.push(CollectiveRow { kernel, ..CollectiveRow::default() });
    assert_eq!(summary(&analysis).lines().count(), 15);
}

#[test]
fn colours_change_nothing_but_colours() {
    let analysis = fixture::training();
    let coloured = report(&analysis, true);
    let mut plain = coloured.clone();
    for code in ["\x1b[1m", "\x1b[1;31m", "\x1b[1;33m", "\x1b[0m"] {
        assert!(coloured.contains(code));
        plain = plain.replace(code, "");
    }
    assert_eq!(plain, report(&analysis, false));
}

fn page(analysis: &Analysis) -> String {
    let mut out = Vec::new();
    write_html(analysis, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn html_reports_are_as_recorded() {
    golden::assert_same("render/training.html", page(&fixture::training()).as_bytes());
    golden::assert_same("render/hostile.html", page(&fixture::hostile()).as_bytes());
}

#[test]
fn hostile_names_add_no_markup_to_the_html_report() {
    let text = page(&fixture::hostile());
    // The flame graph's document is one attribute value: its own quotes are escaped.
    let mut outside = String::new();
    for (index, part) in text.split("srcdoc=\"").enumerate() {
        outside.push_str(if index == 0 { part } else { part.split_once('"').unwrap().1 });
    }
    assert!(!outside.contains("<script") && !outside.contains("<img"), "markup outside of the frame");
    assert_eq!(text.matches("<script").count(), 2, "the two pictures' own scripts");
    assert!(text.contains("&lt;script&gt;alert(1)&lt;/script&gt; never answered"));
    assert!(!text.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
}

#[test]
fn the_html_report_loads_nothing() {
    let text = page(&fixture::training());
    for loading in ["<link", "src=", "url(http", "@import", "fetch(", "XMLHttpRequest"] {
        assert!(!text.contains(loading), "{loading}");
    }
}
