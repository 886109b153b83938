//! A fake RDMA adapter under the real libibverbs and libmlx5, and a program that posts to it. What it proves is that
//! stallscope sees what those libraries do; it says nothing about adapters.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::process::Program;

/// The device's files in sysfs as libibverbs looks for them.
const SYSFS: &[(&str, &str)] = &[
    ("infiniband/mlx5_0/node_type", "1: CA\n"),
    ("infiniband/mlx5_0/node_guid", "0002:c903:0000:0001\n"),
    ("infiniband/mlx5_0/sys_image_guid", "0002:c903:0000:0001\n"),
    ("infiniband/mlx5_0/fw_ver", "20.35.1012\n"),
    ("infiniband/mlx5_0/hca_type", "MT4123\n"),
    ("infiniband/mlx5_0/device/vendor", "0x15b3\n"),
    ("infiniband/mlx5_0/device/device", "0x101b\n"),
    ("infiniband/mlx5_0/device/modalias", "pci:v000015B3d0000101Bsv000015B3sd00000007bc02sc07i00\n"),
    ("infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
    ("infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n"),
    ("infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0002:c903:0000:0001\n"),
    ("infiniband/mlx5_0/ports/1/pkeys/0", "0xffff\n"),
    ("infiniband_verbs/abi_version", "6\n"),
    ("infiniband_verbs/uverbs0/abi_version", "1\n"),
    ("infiniband_verbs/uverbs0/dev", "231:192\n"),
    ("infiniband_verbs/uverbs0/ibdev", "mlx5_0\n"),
];

/// The adapter, and the program to go with it, built for one test.
#[derive(Debug)]
pub struct SoftHca {
    folder: TempDir,
    script: Vec<(&'static str, String)>,
}

impl Default for SoftHca {
    fn default() -> SoftHca {
        SoftHca::new()
    }
}

impl SoftHca {
    /// # Panics
    /// When it cannot be built: `cargo xtask setup` installs libibverbs and its providers.
    pub fn new() -> SoftHca {
        let folder = tempfile::tempdir().expect("makes a temporary folder");
        let root = folder.path();
        for (name, text) in SYSFS {
            let path = root.join("sysfs").join(name);
            fs::create_dir_all(path.parent().expect("is in a folder")).expect("makes a folder");
            fs::write(path, text).expect("writes a file");
        }
        let device = root.join("infiniband/uverbs0");
        fs::create_dir_all(root.join("infiniband")).expect("makes a folder");
        let file = fs::File::create(device).expect("makes a file");
        file.set_len(1 << 20).expect("there is room");
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        compile(
            &programs.join("softhca/softhca.c"),
            &root.join("softhca.so"),
            &["-shared", "-fPIC", "-pthread"],
        );
        compile(&programs.join("verbs.c"), &root.join("verbs"), &["-s", "-libverbs"]);
        SoftHca { folder, script: Vec::new() }
    }

    /// What each request takes, one after another, nanoseconds.
    #[must_use]
    pub fn service_ns(self, ns: u64) -> SoftHca {
        self.set("SOFTHCA_SERVICE_NS", ns)
    }

    /// What comes on top for each, overlapping, nanoseconds.
    #[must_use]
    pub fn latency_ns(self, ns: u64) -> SoftHca {
        self.set("SOFTHCA_LATENCY_NS", ns)
    }

    /// This request of a queue pair ends with an error.
    #[must_use]
    pub fn fail_at(self, request: u64) -> SoftHca {
        self.set("SOFTHCA_FAIL_AT", request)
    }

    /// Version of the completion entries, which decides between two functions of the provider.
    #[must_use]
    pub fn entry_version(self, version: u64) -> SoftHca {
        self.set("SOFTHCA_CQE_VERSION", version)
    }

    fn set(mut self, name: &'static str, value: u64) -> SoftHca {
        self.script.push((name, value.to_string()));
        self
    }

    /// Times of the requests of which each had a completion, in their order.
    ///
    /// # Panics
    /// When the program is not done.
    pub fn times(&self) -> Vec<Times> {
        let text = fs::read_to_string(self.folder.path().join("times")).expect("the program has ended");
        let line = |line: &str| {
            let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
            let [before_post, after_post, before_poll, after_poll] = numbers.try_into().expect("four");
            Times { before_post, after_post, before_poll, after_poll }
        };
        text.lines().map(line).collect()
    }

    /// Starts the program with these phases, see `programs/verbs.c`.
    ///
    /// # Panics
    /// When it does not get ready.
    pub fn start(&self, phases: &[&str]) -> Program {
        let path = |name: &str| -> PathBuf { self.folder.path().join(name) };
        let mut command = Command::new(path("verbs"));
        command.args(phases).env("LD_PRELOAD", path("softhca.so")).env("SOFTHCA_DIR", self.folder.path());
        command.env("VERBS_TIMES", path("times"));
        command.envs(self.script.iter().map(|(name, value)| (*name, value)));
        Program::start_command(&mut command)
    }
}

/// When the program's own clock says that a request was posted and polled.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub before_post: u64,
    pub after_post: u64,
    pub before_poll: u64,
    pub after_poll: u64,
}

fn compile(source: &Path, to: &Path, flags: &[&str]) {
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wall"]).arg(source).arg("-o").arg(to).args(flags);
    let output = command.output().expect("starts cc");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {said}\n`cargo xtask setup` installs libibverbs-dev",
        source.display()
    );
}
