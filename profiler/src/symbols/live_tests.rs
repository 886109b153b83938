//! Stacks of real processes: programs compiled here, blocked in a known place.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use tempfile::TempDir;

use super::memory::read_process;
use super::*;

/// Numbers without a pattern, the same in every run.
pub(super) fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// The same, each below the bound that is asked for.
pub(super) fn random_below(seed: u64) -> impl FnMut(usize) -> usize {
    let mut next = random(seed);
    move |bound| (next() % bound.max(1) as u64) as usize
}

/// A compiled program that waits for standard input.
pub(super) struct Program {
    child: Child,
    // Removed after the process has ended.
    _folder: TempDir,
}

impl Program {
    pub(super) fn start(source: &str, flags: &[&str]) -> Program {
        let folder = tempfile::tempdir().unwrap();
        let path = compile(folder.path(), source, flags);
        Program::spawn(folder, &path)
    }

    fn start_stripped(source: &str, flags: &[&str]) -> Program {
        let folder = tempfile::tempdir().unwrap();
        let path = compile(folder.path(), source, flags);
        run(Command::new("strip").arg(&path));
        Program::spawn(folder, &path)
    }

    pub(super) fn spawn(folder: TempDir, path: &Path) -> Program {
        let child = Command::new(path).stdin(Stdio::piped()).spawn().unwrap();
        let program = Program { child, _folder: folder };
        wait_blocked_in_read(program.pid(), program.pid(), 0);
        program
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn live_stack(&self) -> Stack {
        let mut symbolizer = Symbolizer::new();
        symbolizer.add_process(self.pid());
        symbolizer.live_stack(self.pid(), self.pid(), Registers::default()).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn compile(folder: &Path, source: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/symbols").join(source);
    let compiler = if source.extension().is_some_and(|extension| extension == "cc") { "g++" } else { "gcc" };
    let program = folder.join("program");
    run(Command::new(compiler).args(flags).arg(source).arg("-o").arg(&program));
    program
}

pub(super) fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn wait_blocked_in_read(pid: u32, tid: u32, fd: i32) {
    let call = format!("{} {fd:#x} ", libc::SYS_read);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
        if text.starts_with(&call) {
            return;
        }
        assert!(Instant::now() < deadline, "thread {tid} is not blocked in read: {text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn functions(stack: &Stack) -> Vec<&str> {
    stack.frames.iter().map(|frame| frame.function.as_str()).collect()
}

/// The chain is there without gaps, and the stack ends at the program's start.
#[track_caller]
fn assert_chain(stack: &Stack, chain: &[&str]) {
    let names = functions(stack);
    assert!(names.windows(chain.len()).any(|window| window == chain), "{chain:?} not in {names:?}");
    assert!(!stack.truncated, "{names:?}");
    assert_eq!(names.last(), Some(&"_start"), "{names:?}");
}

const CHAIN: [&str; 5] = ["read", "inner", "middle", "outer", "main"];

#[test]
fn unwinds_optimised_code_without_frame_pointers() {
    for link in ["-pie", "-no-pie", "-static"] {
        let program = Program::start("chain.c", &["-O2", "-fomit-frame-pointer", link]);
        let stack = program.live_stack();
        let chain = if link == "-static" { &CHAIN[1..] } else { &CHAIN[..] };
        assert_chain(&stack, chain);
        let inner = stack.frames.iter().find(|frame| frame.function == "inner").unwrap();
        assert_eq!((inner.module.as_str(), inner.offset), ("program", 0));
        assert_ne!(stack.id, 0);
        assert_eq!(stack.id, program.live_stack().id);
    }
}

#[test]
fn names_exported_functions_of_a_stripped_program() {
    let flags = ["-O2", "-fomit-frame-pointer", "-rdynamic"];
    let program = Program::start_stripped("chain.c", &flags);
    let stack = program.live_stack();
    assert_chain(&stack, &CHAIN);
}

#[test]
fn frames_without_a_name_say_where_they_are_and_are_counted() {
    let program = Program::start_stripped("chain.c", &["-O2", "-fomit-frame-pointer"]);
    let mut symbolizer = Symbolizer::new();
    let stack = symbolizer.live_stack(program.pid(), program.pid(), Registers::default()).unwrap();
    assert!(!stack.truncated);
    let own: Vec<_> = stack.frames.iter().filter(|frame| frame.module == "program").collect();
    assert_eq!(own.len(), 5, "{stack:?}");
    assert!(own.iter().all(|frame| frame.function.is_empty() && frame.offset > 0));
    let unnamed = stack.frames.iter().filter(|frame| frame.function.is_empty()).count();
    assert_eq!(symbolizer.unresolved_frames(), unnamed as u64);
    assert_eq!(symbolizer.truncated_stacks(), 0);
}

#[test]
fn demangles_cpp() {
    let program = Program::start("chain.cc", &["-O2", "-fomit-frame-pointer"]);
    assert_chain(&program.live_stack(), &["read", "job::wait", "job::Trainer<int>::run", "main"]);
}

#[test]
fn unwinds_through_a_signal_handler() {
    let program = Program::start("signal.c", &["-O2", "-fomit-frame-pointer"]);
    let stack = program.live_stack();
    let names = functions(&stack);
    let at = |name: &str| names.iter().position(|&other| other == name);
    let order = ["read", "handler", "syscall", "raiser", "main"].map(at);
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{names:?}");
    assert!(!stack.truncated);
}

#[test]
fn unwinds_frames_of_variable_size() {
    for flags in [&["-O2", "-fomit-frame-pointer"][..], &["-O2", "-mstackrealign", "-fomit-frame-pointer"]] {
        let program = Program::start("aligned.c", flags);
        let registers = registers_of(program.pid());
        let mut symbolizer = Symbolizer::new();
        let stack = symbolizer.live_stack(program.pid(), program.pid(), registers).unwrap();
        assert_chain(&stack, &["read", "inner", "realigned", "outer", "main"]);
    }
}

#[test]
fn finds_frames_whose_frame_pointer_is_not_known() {
    // What `/proc` tells of a blocked thread lacks the frame pointer, by which alone these frames are found.
    for flags in [&["-O0"][..], &["-O2", "-fno-omit-frame-pointer"]] {
        assert_chain(&Program::start("chain.c", flags).live_stack(), &CHAIN);
    }
    let stack = Program::start("aligned.c", &["-O2"]).live_stack();
    assert_chain(&stack, &["read", "inner", "realigned", "outer", "main"]);
}

#[inline(never)]
fn block_in_rust(fd: &OwnedFd) -> usize {
    let mut byte = [0];
    let got = nix::unistd::read(fd, &mut byte).unwrap();
    got + usize::from(byte[0])
}

#[test]
fn unwinds_a_thread_of_a_rust_program() {
    let (read, write) = nix::unistd::pipe().unwrap();
    let fd = read.as_raw_fd();
    let (send, receive) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        send.send(nix::unistd::gettid()).unwrap();
        block_in_rust(&read)
    });
    let tid = receive.recv().unwrap().as_raw() as u32;
    let pid = std::process::id();
    wait_blocked_in_read(pid, tid, fd);
    let stack = Symbolizer::new().live_stack(pid, tid, Registers::default());
    nix::unistd::write(&write, &[1]).unwrap();
    assert_eq!(thread.join().unwrap(), 2);
    let stack = stack.unwrap();
    let names = functions(&stack);
    assert!(names.contains(&"stallscope::symbols::live_tests::block_in_rust"), "{names:?}");
    assert!(!stack.truncated, "{names:?}");
}

#[test]
fn a_thread_that_is_gone_or_elsewhere_has_no_stack() {
    let mut program = Program::start("chain.c", &["-O2"]);
    let pid = program.pid();
    let mut symbolizer = Symbolizer::new();
    let elsewhere = Registers { ip: 0x1000, sp: 0x2000, bp: 0 };
    assert_eq!(symbolizer.live_stack(pid, pid, elsewhere), None);
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    assert_eq!(symbolizer.live_stack(pid, pid, Registers::default()), None);
}

/// Registers of a blocked child, as the kernel would hand them to a probe.
fn registers_of(pid: u32) -> Registers {
    let pid = Pid::from_raw(pid as i32);
    ptrace::seize(pid, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(pid).unwrap();
    waitpid(pid, None).unwrap();
    let registers = ptrace::getregs(pid).unwrap();
    ptrace::detach(pid, None).unwrap();
    wait_blocked_in_read(pid.as_raw() as u32, pid.as_raw() as u32, 0);
    #[cfg(target_arch = "aarch64")]
    let registers = Registers { ip: registers.pc, sp: registers.sp, bp: registers.regs[29] };
    #[cfg(target_arch = "x86_64")]
    let registers = Registers { ip: registers.rip, sp: registers.rsp, bp: registers.rbp };
    registers
}

/// What the eBPF program would have sent for a blocked child.
fn raw_stack(pid: u32, snippet: usize) -> RawStack {
    let regs = registers_of(pid);
    let mut bytes = vec![0; snippet];
    let len = read_process(pid, regs.sp, &mut bytes);
    bytes.truncate(len);
    let mut frames = vec![regs.ip];
    let mut pointer = regs.bp;
    let word = |address: u64| {
        let mut bytes = [0; 8];
        (read_process(pid, address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    };
    while frames.len() < STACK_FRAMES {
        let (Some(next), Some(address)) = (word(pointer), word(pointer.wrapping_add(8))) else { break };
        frames.push(address);
        pointer = next;
    }
    RawStack { id: 77, pid, tid: pid, frames, regs, snippet: bytes, ..RawStack::default() }
}

#[test]
fn unwinds_a_snippet_after_the_process_is_gone() {
    let program = Program::start("chain.c", &["-O2", "-fomit-frame-pointer"]);
    let mut symbolizer = Symbolizer::new();
    symbolizer.add_process(program.pid());
    let raw = raw_stack(program.pid(), 16384);
    drop(program);
    let stack = symbolizer.stack(&raw);
    assert_chain(&stack, &CHAIN);
    assert_eq!((stack.id, stack.space), (77, Space::User));
}

#[test]
fn kernel_frames_continue_where_the_snippet_ends() {
    let program = Program::start("deep.c", &["-O1", "-fno-omit-frame-pointer"]);
    let mut symbolizer = Symbolizer::new();
    let raw = raw_stack(program.pid(), 16384);
    let stack = symbolizer.stack(&raw);
    let names = functions(&stack);
    let deep = names.iter().filter(|&&name| name == "deep").count();
    assert_eq!(deep, 40, "{names:?}");
    let expected: Vec<_> = ["read", "inner"].into_iter().chain(["deep"; 40]).chain(["main"]).collect();
    assert!(names.starts_with(&expected), "{names:?}");

    // Without the snippet the kernel's frames stand alone: `read` keeps no frame pointer, and the walk
    // cannot see its caller.
    let bare = symbolizer.stack(&RawStack { snippet: Vec::new(), ..raw.clone() });
    let names = functions(&bare);
    assert_eq!(names.iter().filter(|&&name| name == "deep").count(), 40, "{names:?}");

    // Without the kernel's frames the stack is cut, and says so.
    let before = symbolizer.truncated_stacks();
    let cut = symbolizer.stack(&RawStack { frames: Vec::new(), ..raw });
    assert!(cut.truncated && !functions(&cut).contains(&"main"));
    assert!(functions(&cut).starts_with(&["read", "inner", "deep", "deep"]));
    assert_eq!(symbolizer.truncated_stacks(), before + 1);
}

#[test]
fn unwinds_by_frame_pointers_where_there_is_no_unwind_table() {
    let flags = ["-O1", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let program = Program::start("chain.c", &flags);
    let raw = raw_stack(program.pid(), 16384);
    let stack = Symbolizer::new().stack(&raw);
    let names = functions(&stack);
    assert!(names.starts_with(&["read", "inner", "middle", "outer", "main"]), "{names:?}");
}

#[test]
fn maps_are_read_again_after_exec() {
    let program = Program::start("chain.c", &["-O2", "-fomit-frame-pointer"]);
    let mut symbolizer = Symbolizer::new();
    symbolizer.add_process(program.pid());
    symbolizer.exec(program.pid());
    let stack = symbolizer.live_stack(program.pid(), program.pid(), Registers::default()).unwrap();
    assert_chain(&stack, &CHAIN);
    symbolizer.forget(program.pid());
    let again = symbolizer.live_stack(program.pid(), program.pid(), Registers::default()).unwrap();
    assert_eq!(stack, again);
}

#[test]
fn a_separate_debug_file_is_found_by_build_id_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), "chain.c", &["-O2", "-Wl,--build-id"]);
    let (source, _) = super::source::Source::open(&path).unwrap();
    let elf = super::elf::Elf::parse(source).unwrap();
    assert_eq!(elf.build_id.len(), 20);
    let hex = elf.build_id.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    let debug = folder.path().join("usr/lib/debug/.build-id").join(&hex[..2]);
    std::fs::create_dir_all(&debug).unwrap();
    let debug = debug.join(format!("{}.debug", &hex[2..]));
    run(Command::new("objcopy").arg("--only-keep-debug").args([&path, &debug]));
    assert!(
        super::debug_file::open(
            &elf,
            b"/elsewhere/program",
            &[super::debug_file::Root::Folder(folder.path().to_path_buf())]
        )
        .is_some()
    );
    // The same place with another program's file.
    let other = compile(folder.path(), "deep.c", &["-O2", "-Wl,--build-id"]);
    std::fs::copy(other, &debug).unwrap();
    assert!(
        super::debug_file::open(
            &elf,
            b"/elsewhere/program",
            &[super::debug_file::Root::Folder(folder.path().to_path_buf())]
        )
        .is_none()
    );
}

#[test]
fn names_the_vdso() {
    use object::{Object, ObjectSymbol};
    let pid = std::process::id();
    let mappings = super::maps::read(pid).unwrap();
    let vdso = mappings.iter().find(|mapping| mapping.path == b"[vdso]").unwrap();
    let bytes = super::vdso::read(pid, vdso).unwrap();
    let file = object::File::parse(&bytes[..]).unwrap();
    let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok("__vdso_getcpu")).unwrap();
    let mut modules = Modules::default();
    modules.add(pid);
    let frame = modules.space(pid).frames(vdso.start + symbol.address()).remove(0);
    assert_eq!(frame, Frame { function: "getcpu".to_owned(), module: "[vdso]".to_owned(), offset: 0 });
}

#[test]
fn names_kernel_functions() {
    let mut symbolizer = Symbolizer::new();
    let raw = RawStack { id: 5, kernel: true, frames: vec![0xffff_8000_0000_0000], ..RawStack::default() };
    let stack = symbolizer.stack(&raw);
    assert_eq!((stack.id, stack.space, stack.truncated), (5, Space::Kernel, false));
    assert_eq!(stack.frames[0].module, "[kernel]");
}

#[test]
fn random_stack_memory_does_no_harm() {
    let program = Program::start("chain.c", &["-O2"]);
    let raw = raw_stack(program.pid(), 4096);
    let mut symbolizer = Symbolizer::new();
    let mut next = random(0x9e37_79b9_7f4a_7c15);
    for round in 0..500 {
        let mut stack = raw.clone();
        // Now and then words that are addresses of code, so that the walk goes on.
        for word in stack.snippet.chunks_exact_mut(8) {
            let value =
                if next().is_multiple_of(4) { raw.frames[0].wrapping_add(next() % 4096) } else { next() };
            word.copy_from_slice(&value.to_le_bytes());
        }
        stack.regs.bp = if round % 2 == 0 { raw.regs.sp + next() % 4096 } else { next() };
        if round % 7 == 0 {
            stack.regs.sp = u64::MAX - next() % 64;
        }
        stack.frames = (0..next() % 200).map(|_| next()).collect();
        let named = symbolizer.stack(&stack);
        assert!(!named.frames.is_empty() && named.frames.len() <= unwind::MAX_FRAMES);
    }
}
