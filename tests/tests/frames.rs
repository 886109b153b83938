//! The frames of programs without frame pointers, listed and compared whole: from the function that waits to the start
//! of the thread.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use stallscope_tests::{Peer, Program, RecordedTrace, record_run, require_root, stallscope};
use tempfile::TempDir;

/// How the C program is compiled.
const C: &[&str] = &["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
const MAIN: &[&str] = &["run", "main", "[libc]", "_start"];
const PLAIN: &[&str] = &["recv", "inner", "middle", "outer"];

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles `programs/SOURCE` to `program` in a folder of its own.
struct Built {
    folder: TempDir,
}

impl Built {
    fn new(compiler: &str, source: &str, flags: &[&str]) -> Built {
        let folder = tempfile::tempdir().expect("makes a temporary folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
        let program = folder.path().join("program");
        run(Command::new(compiler).args(flags).arg(source).arg("-o").arg(program));
        Built { folder }
    }

    fn c(flags: &[&str]) -> Built {
        Built::new("cc", "frames.c", &[C, flags].concat())
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    fn tool(&self, tool: &str, arguments: &[&str]) {
        run(Command::new(tool).args(arguments).current_dir(self.folder.path()));
    }

    fn strip(self) -> Built {
        self.tool("strip", &["program"]);
        self
    }

    /// Takes the debug information into a file of its own that the program names.
    fn with_debug_link(self) -> Built {
        self.tool("mkdir", &[".debug"]);
        self.tool("objcopy", &["--only-keep-debug", "program", ".debug/program.debug"]);
        let built = self.strip();
        built.tool("objcopy", &["--add-gnu-debuglink=.debug/program.debug", "program"]);
        built
    }

    /// Takes the debug information to where a root directory has it by build id, and nothing else of the program.
    fn with_debug_root(self) -> Built {
        let id = build_id(&self.program());
        let (first, rest) = id.split_at(2);
        let place = format!("usr/lib/debug/.build-id/{first}");
        self.tool("mkdir", &["-p", &place]);
        self.tool("objcopy", &["--only-keep-debug", "program", &format!("{place}/{rest}.debug")]);
        self.strip()
    }

    /// Records it while it waits; in `root`, if it is to have a root directory of its own.
    fn record(&self, arguments: &[&str], rooted: bool) -> RecordedTrace {
        require_root();
        let peer = Peer::late(Duration::from_millis(20));
        let port = peer.address().port().to_string();
        let mut command = if rooted {
            let mut command = Command::new("chroot");
            command.arg(self.folder.path()).arg("/program");
            command
        } else {
            Command::new(self.program())
        };
        let mut program = Program::start_command(command.arg(port).args(arguments));
        record_run(&mut program).1
    }

    /// The one stack in which the program received.
    fn frames(&self, arguments: &[&str]) -> Vec<String> {
        one(stacks(&self.record(arguments, false)))
    }
}

fn build_id(program: &Path) -> String {
    let output = Command::new("readelf").arg("-n").arg(program).output().expect("starts readelf");
    let text = String::from_utf8(output.stdout).expect("readelf writes text");
    let id = text.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.unwrap_or_else(|| panic!("no build id: {text}")).to_owned()
}

fn one(mut stacks: Vec<Stack>) -> Vec<String> {
    assert_eq!(stacks.len(), 1, "{stacks:?}");
    let stack = stacks.remove(0);
    assert!(!stack.truncated, "{stack:?}");
    stack.frames
}

#[derive(Debug, PartialEq, Eq)]
struct Stack {
    frames: Vec<String>,
    truncated: bool,
}

/// The user stacks of the waits for data in their order, as [`shown`].
fn stacks(trace: &RecordedTrace) -> Vec<Stack> {
    let output = stallscope(&["export", &trace.path.to_string_lossy(), "--format", "json"]);
    let export: Value = serde_json::from_slice(&output.stdout).expect("the export is one JSON document");
    let records = export["records"].as_array().expect("records are an array");
    let mut waits: Vec<_> =
        records.iter().filter(|record| record["kind"] == "wait" && record["call"] == "recvfrom").collect();
    waits.sort_by_key(|wait| wait["start_ns"].as_u64());
    let stack = |wait: &&Value| {
        let is_it = |record: &&Value| record["kind"] == "stack" && record["id"] == wait["user_stack"];
        let stack = records.iter().find(is_it).unwrap_or_else(|| panic!("no stack: {wait}"));
        let frames = stack["frames"].as_array().expect("frames are an array");
        Stack { frames: shown(frames), truncated: stack["truncated"] == true }
    };
    waits.iter().map(stack).collect()
}

/// Names of frames, innermost first. What depends on the C library's build and on Rust's, and not on the program, is
/// `[libc]` and `[std]`, once for neighbours; a frame without a name is its module's.
fn shown(frames: &[Value]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let text = |key: &str| frame[key].as_str().unwrap_or_default();
        let (function, module) = (text("function"), text("module"));
        let start = function.trim_start_matches('_').starts_with("libc_start");
        let rust = ["std::", "core::", "<std::", "<core::", "<fn", "<F as core::", "<&dyn core::", "__rust_"];
        let name = if module == "[vdso]" {
            "[vdso]"
        } else if index > 0 && (module.starts_with("libc.") || start) {
            "[libc]"
        } else if rust.iter().any(|start| function.starts_with(start)) {
            "[std]"
        } else if function.is_empty() {
            module
        } else {
            function
        };
        let neighbours = name.starts_with('[') && names.last().is_some_and(|last| last == name);
        if !neighbours {
            names.push(name.to_owned());
        }
    }
    names
}

fn list(parts: &[&[&str]]) -> Vec<String> {
    parts.concat().iter().map(ToString::to_string).collect()
}

#[test]
fn a_c_program_without_frame_pointers_is_unwound_to_its_start() {
    for link in ["-pie", "-no-pie", "-static"] {
        assert_eq!(Built::c(&[link]).frames(&["plain"]), list(&[PLAIN, MAIN]), "{link}");
    }
}

#[test]
fn a_stripped_program_has_its_names_from_a_debug_file_that_it_names() {
    let stripped = Built::c(&["-g"]).strip();
    let unnamed = stripped.frames(&["plain"]);
    assert_eq!(unnamed, list(&[&["recv"], &["program"; 5], &["[libc]", "program"]]));
    assert_eq!(Built::c(&["-g"]).with_debug_link().frames(&["plain"]), list(&[PLAIN, MAIN]));
    let inlined: &[&str] = &["recv", "inner", "inlined_inner", "inlined_outer", "around"];
    assert_eq!(Built::c(&["-g"]).with_debug_link().frames(&["inlined"]), list(&[inlined, MAIN]));
}

#[test]
fn a_debug_file_is_found_by_build_id_in_the_root_of_the_program() {
    let built = Built::c(&["-g", "-static", "-Wl,--build-id"]).with_debug_root();
    let frames = one(stacks(&built.record(&["plain"], true)));
    assert_eq!(frames, list(&[PLAIN, MAIN]));
}

#[test]
fn a_static_program_without_names_is_unwound() {
    let frames = Built::c(&["-static"]).strip().frames(&["plain"]);
    assert_eq!(frames.len(), 9, "{frames:?}");
    assert!(frames.iter().all(|name| name == "program"), "{frames:?}");
}

/// Debian's musl has neither unwind tables nor frame pointers.
#[test]
fn programs_with_musl_are_unwound_through_their_c_library() {
    let wait: &[&str] = &["inner", "middle", "outer"];
    let dynamic = Built::new("musl-gcc", "frames.c", C).frames(&["plain"]);
    // The function that enters the kernel is not exported.
    assert_eq!(dynamic, list(&[&["libc.so", "[libc]"], wait, MAIN]));
    let fixed = Built::new("musl-gcc", "frames.c", &[C, &["-static"]].concat()).frames(&["plain"]);
    assert_eq!(fixed, list(&[&["sccp", "recvfrom"], wait, MAIN]));
}

#[test]
fn a_recursion_is_told_as_deep_as_it_is_or_cut_and_counted() {
    let built = Built::c(&[]);
    let trace = built.record(&["deep"], false);
    let [stack] = stacks(&trace).try_into().expect("one stack");
    let whole = list(&[&["recv", "inner"], &["deep"; 500], MAIN]);
    let counted = trace.report()["coverage"]["truncated_stacks"].as_u64();
    if stack.truncated {
        assert!(stack.frames.len() > 100 && whole.starts_with(&stack.frames), "{stack:?}");
        // The request before it can be a wait of its own on a busy machine, from as deep.
        assert!(matches!(counted, Some(1 | 2)), "{counted:?}");
    } else {
        assert_eq!(stack.frames, whole);
        assert_eq!(counted, Some(0));
    }
}

#[test]
fn frames_go_on_behind_a_signal() {
    let frames = Built::c(&[]).frames(&["signal"]);
    // The frame that the kernel made is in the C library, as is the function that was interrupted.
    assert_eq!(frames, list(&[&["recv", "inner", "handler", "[libc]", "raiser"], MAIN]));
}

#[test]
fn frames_go_on_behind_a_signal_in_the_kernel_s_code() {
    let frames = Built::c(&[]).frames(&["vdso"]);
    assert_eq!(frames, list(&[&["recv", "inner", "timer", "[libc]", "[vdso]", "[libc]", "reader"], MAIN]));
}

#[test]
fn cpp_frames_are_told_while_an_exception_is_handled() {
    let flags = &["-O2", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    let built = Built::new("c++", "frames.cc", flags);
    let trace = built.record(&[], false);
    let found: Vec<_> = stacks(&trace).into_iter().map(|stack| stack.frames).collect();
    let inside: &[&str] = &["recv", "job::inner"];
    let outside: &[&str] = &["job::Trainer<int>::run", "main", "[libc]", "_start"];
    let guarded: &[&str] = &["job::Guard::~Guard", "job::Trainer<int>::guarded"];
    assert_eq!(found, [list(&[inside, guarded, outside]), list(&[inside, outside])]);
}

#[test]
fn rust_frames_are_told_with_what_is_inlined() {
    let flags = ["-O", "-C", "force-frame-pointers=no", "--edition=2024"];
    let rust = |more: &[&str]| Built::new("rustc", "frames.rs", &[&flags, more].concat());
    let outside: &[&str] = &["frames::outer", "frames::main", "[std]", "main", "[libc]", "_start"];
    let inside: &[&str] = &["recv", "frames::inner"];
    let step: &[&str] = &["frames::Job<std::net::tcp::TcpStream>::step"];
    assert_eq!(rust(&[]).frames(&[]), list(&[inside, step, outside]));
    let inlined: &[&str] = &["frames::Job<std::net::tcp::TcpStream>::inlined"];
    let whole = list(&[inside, inlined, step, outside]);
    assert_eq!(rust(&["-C", "debuginfo=2"]).with_debug_link().frames(&[]), whole);
    let stripped = rust(&[]).strip().frames(&[]);
    assert_eq!(stripped[..2], ["recv", "program"]);
    assert!(stripped[1..].iter().all(|name| name == "program" || name == "[libc]"), "{stripped:?}");
}
