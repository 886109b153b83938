//! `stallscope demo`: the workload, its recording and the views of it.

use std::fs;
use std::time::Duration;

use super::args::DemoArgs;
use super::error::CliError;
use super::load::load_analysis;
use super::output::write_output;
use super::record::{Standard, choose_topology, conclude, note};
use crate::demo::{Demo, run_workload};
use crate::record::{GpuTimes, HeldBack, RecordOptions, TargetChoice, record};
use crate::render::RenderError;
use crate::render::flame::write_svg;
use crate::render::text::write_report;
use crate::render::tree::FlameOptions;

/// How long the workload may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn run(args: &DemoArgs) -> Result<(), CliError> {
    if let Some(role) = &args.role {
        return Ok(run_workload(role, &args.role_arguments)?);
    }
    let folder = &args.output;
    fs::create_dir_all(folder).map_err(|error| CliError::output(&folder.display().to_string(), &error))?;
    let trace = folder.join("demo.stall");
    note(
        "starting a small job in network namespaces: a gather over two racks with a late rank, a dead and a slow resolver",
    );
    let mut job = Demo::start()?;
    if let Err(error) = job.link() {
        note(&format!("without a slow way between its racks: {error}"));
    }
    job.wait_ready(PATIENCE)?;
    let racks = folder.join("racks.txt");
    write_output(Some(&racks), |out| out.write_all(Demo::topology().as_bytes()).map_err(RenderError::from))?;
    let topology = choose_topology(&racks)?;
    let options = RecordOptions {
        target: TargetChoice::Pids(vec![job.pid()]),
        duration: Some(args.duration),
        output: trace.clone(),
        min_stall: Duration::from_micros(100),
        follow: true,
        unavailable: Vec::new(),
        net: true,
        marker: None,
        dns: true,
        verbs: None,
        gpu: GpuTimes::NotAsked,
        topology: Some(topology),
        verbose: false,
    };
    let recording = record(&options, HeldBack::new(), &mut Standard)?;
    job.stop();
    match conclude(&recording, &trace, false) {
        Err(error) if error.code != 0 => return Err(error),
        _ => {}
    }
    let analysis = load_analysis(&trace, None)?;
    let (flame, report) = (folder.join("flame.svg"), folder.join("report.txt"));
    write_output(Some(&flame), |out| write_svg(&analysis, &FlameOptions::default(), out))?;
    write_output(Some(&report), |out| write_report(&analysis, out).map_err(RenderError::from))?;
    note(&format!("report written to {}", report.display()));
    note(&format!("flame graph written to {}: open it in a browser", flame.display()));
    Ok(())
}
