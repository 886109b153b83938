//! A job that "uses CUDA", with stand-ins for libcuda and libcupti in a folder of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::{Program, RecordedTrace, Recorder};

/// Threads that wait in every way there is.
pub const ALL_WAITS: &[&str] = &["futex", "poll", "epoll", "sleep", "vector"];
/// How long something may take to happen. Generous: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// A folder with the job and its libraries.
#[derive(Debug)]
pub struct CudaJob {
    folder: TempDir,
}

impl Default for CudaJob {
    fn default() -> CudaJob {
        CudaJob::build()
    }
}

impl CudaJob {
    /// # Panics
    /// Without a C compiler.
    pub fn build() -> CudaJob {
        CudaJob::build_with("cc")
    }

    /// # Panics
    /// Without this compiler.
    pub fn build_with(compiler: &str) -> CudaJob {
        let folder = tempfile::tempdir().expect("makes a temporary folder");
        let job = CudaJob { folder };
        job.compile(compiler, "fake_cupti.c", "libcupti.so.12", &["-shared", "-fPIC"]);
        job.compile(compiler, "fake_cuda.c", "libcuda.so.1", &["-shared", "-fPIC"]);
        job.compile(compiler, "cuda_job.c", "job", &[]);
        // Another name, by which nobody knows it.
        std::fs::copy(job.path("libcupti.so.12"), job.path("libgpu.so")).expect("copies a file");
        job
    }

    /// Libraries that the job loads at the word `many`.
    ///
    /// # Panics
    /// Where they cannot be written.
    pub fn add_libraries(&self, count: usize) {
        for number in 0..count {
            std::fs::copy(self.path("libgpu.so"), self.path(&format!("many{number}.so")))
                .expect("copies a file");
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn compile(&self, compiler: &str, source: &str, target: &str, flags: &[&str]) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
        let mut command = Command::new(compiler);
        command.args(["-O2", "-Wall"]).args(flags).arg(source).arg("-o").arg(self.path(target));
        let output = command.args(["-lpthread", "-ldl"]).output().expect("there is a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// # Panics
    /// When it does not get ready.
    pub fn start(&self, words: &[&str], environment: &[(&str, &str)]) -> Program {
        let mut command = Command::new(self.path("job"));
        command.arg(self.folder.path()).args(words).envs(environment.iter().copied());
        Program::adopt(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts the job"))
    }
}

/// Whether the agent's thread is in the process.
///
/// # Panics
/// When the process has ended.
pub fn has_agent(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the job runs");
    tasks.flatten().any(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "stallscope")
    })
}

/// # Panics
/// When it does not come about.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < give_up, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Records process `pid`, which is that of `program` or below it, until the agent has been there and the job has
/// launched more.
///
/// # Panics
/// When the recording fails.
pub fn record_launches(program: &mut Program, pid: u32, arguments: &[&str]) -> RecordedTrace {
    let recording = Recorder::new().pid(pid).args(arguments).start();
    wait_until("the agent", || has_agent(pid));
    let launched: u64 = program.run().get("launched");
    wait_until("more launches", || program.run().get::<u64>("launched") > launched + 60);
    let trace = recording.finish();
    assert!(trace.status.success(), "{}", trace.stderr);
    trace
}

/// State and reason of the GPU times.
///
/// # Panics
/// When the report has none.
pub fn gpu_coverage(report: &Value) -> (String, String) {
    let probes = report["coverage"]["probes"].as_array().expect("a list");
    let row = probes.iter().find(|row| row["family"] == "cuda").expect("cuda has a row");
    let text = |key: &str| row[key].as_str().expect("text").to_owned();
    (text("state"), text("reason"))
}
