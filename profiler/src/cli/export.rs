//! `stallscope export`.

use std::io::{self, Read, Write};
use std::path::Path;

use super::args::{ExportArgs, ExportFormat};
use super::error::CliError;
use super::load::load_stacks;
use super::output::{keep_inputs, write_output};
use crate::render::RenderError;
use crate::render::folded::fold_lines;
use crate::render::json::Escaping;
use crate::render::tree::FlameOptions;
use crate::trace::TraceReader;

/// Name and version of the JSON document; `docs/trace-format.md` describes it.
const SCHEMA: &str = "stallscope.trace/1";

pub fn run(args: &ExportArgs) -> Result<(), CliError> {
    keep_inputs(args.output.as_deref(), [args.trace.as_path()])?;
    match args.format {
        ExportFormat::Folded => export_folded(&args.trace, args.output.as_deref()),
        ExportFormat::Json => {
            let mut reader = TraceReader::open(&args.trace)?;
            write_output(args.output.as_deref(), |out| {
                write_records(&mut reader, out).map_err(RenderError::from)
            })
        }
    }
}

fn export_folded(trace: &Path, output: Option<&Path>) -> Result<(), CliError> {
    let analysis = load_stacks(trace, None)?;
    write_output(output, |out| {
        let lines = fold_lines(&analysis, &FlameOptions::default())?;
        lines.iter().try_for_each(|line| writeln!(out, "{line}")).map_err(RenderError::from)
    })
}

/// One document, one record a line; a trace of any length takes no more memory than one of its blocks.
fn write_records<R: Read>(reader: &mut TraceReader<R>, out: &mut dyn Write) -> io::Result<()> {
    let version = reader.version();
    write!(
        out,
        "{{\"schema\":\"{SCHEMA}\",\"format\":\"{}.{}\",\"records\":[",
        version.major, version.minor
    )?;
    let mut separator = "\n";
    for record in reader.by_ref() {
        out.write_all(separator.as_bytes())?;
        serde_json::to_writer(Escaping(&mut *out), &record)?;
        separator = ",\n";
    }
    out.write_all(b"\n],\"trace\":")?;
    serde_json::to_writer(Escaping(&mut *out), &reader.state())?;
    out.write_all(b"}\n")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::trace::record::{Clock, End, Record};
    use crate::trace::{TraceWriter, read_all};

    fn exported(records: &[Record], cut: u64) -> (Value, Vec<Record>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.stall");
        let mut writer = TraceWriter::create(&path).unwrap();
        for record in records {
            writer.write(record.clone()).unwrap();
        }
        writer.finish(End { time_ns: 5, reason: "duration".to_owned() }).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() - cut).unwrap();
        let mut out = Vec::new();
        write_records(&mut TraceReader::open(&path).unwrap(), &mut out).unwrap();
        (serde_json::from_slice(&out).unwrap(), read_all(&path).unwrap().0)
    }

    #[test]
    fn every_record_stands_in_the_document_as_it_is_read() {
        let (document, records) = exported(&[Record::Clock(Clock { monotonic_ns: 1, unix_ns: u64::MAX })], 0);
        assert_eq!(document["schema"], "stallscope.trace/1");
        assert_eq!(document["records"][0], json!({"kind": "clock", "monotonic_ns": 1, "unix_ns": u64::MAX}));
        assert_eq!(document["records"], serde_json::to_value(&records).unwrap());
        assert_eq!(document["trace"], json!({"complete": true, "damage": [], "bytes_unread": 0}));
    }

    #[test]
    fn a_damaged_trace_makes_a_whole_document_that_says_so() {
        let (document, _) = exported(&[], 1);
        assert_eq!(document["records"], json!([]));
        assert_eq!(document["trace"]["complete"], false);
        assert!(document["trace"]["bytes_unread"].as_u64().unwrap() > 0);
    }
}
