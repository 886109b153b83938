//! Where in the program a stall was: the few functions that say it in a line.

use profiler_common::Api;

use crate::analysis::Analysis;
use crate::analysis::stall::Stall;
use crate::render::name::shorten;
use crate::render::tree::{FrameKind, Labels, ViewFrame, stall_frames};

/// Functions that are named, the innermost of those that mean something; with the call that waits one more.
const MOST: usize = 4;
/// Longest name.
const LONGEST: usize = 48;

/// What every program starts with, and what runtimes put between two functions of a program.
const BORING: [&str; 28] = [
    "_start",
    "start_thread",
    "clone3",
    // What libc calls its functions inside, and what of Rust starts a program.
    "__",
    "futex_",
    "std::rt::",
    "std::sys::",
    "std::panic",
    "std::io::",
    "std::thread::",
    "<std::",
    "<alloc::",
    "<core::",
    "core::ops::",
    "core::",
    "alloc::",
    "rust_",
    "_Py",
    "Py",
    "py",
    "pybind11",
    "_ZN8pybind11",
    "_ZZN8pybind11",
    "cfunction_",
    "method_vectorcall",
    "slot_tp_",
    "runtime.goexit",
    "[",
];

/// `main → gather → recv`, outermost first; empty where the stack says nothing.
pub(super) fn calling_path(analysis: &Analysis, stall: &Stall) -> String {
    let frames = stall_frames(analysis, &Labels::default(), stall);
    let call = frames.iter().find(|frame| is_call(frame));
    // What libc does inside of `getaddrinfo` is not the program's.
    let outside = frames.iter().take_while(|frame| !is_call(frame));
    let program: Vec<&ViewFrame> = outside.filter(|frame| means_something(frame)).collect();
    if program.is_empty() {
        return String::new();
    }
    let mut names = innermost(&program);
    // `recv` of the C library is the system call `recvfrom`.
    let call = call.filter(|call| !names.last().is_some_and(|last| call.name.starts_with(last.as_str())));
    names.extend(call.map(|frame| frame.name.clone()));
    names.join(" → ")
}

/// The innermost functions; below functions of Python there are always native ones, and both say where it was.
fn innermost(program: &[&ViewFrame]) -> Vec<String> {
    let python = program.iter().rposition(|frame| is_python(&frame.name)).map_or(0, |last| last + 1);
    let (script, native) = program.split_at(python);
    let of_script = MOST.saturating_sub(native.len()).max(MOST / 2).min(script.len());
    let of_native = MOST - of_script;
    let mut names = Vec::new();
    for (part, most) in [(script, of_script), (native, of_native)] {
        if part.len() > most {
            names.push("..".to_owned());
        }
        names.extend(part.iter().skip(part.len().saturating_sub(most)).map(|frame| brief(&frame.name)));
    }
    names
}

/// `main (train.py:21)`
fn is_python(name: &str) -> bool {
    name.ends_with(')') && name.contains(" (")
}

/// The call that waits, or the resolver function around it; of one that began before the recording the stack alone says
/// which it is.
fn is_call(frame: &ViewFrame) -> bool {
    frame.kind == FrameKind::Call || Api::ALL.iter().any(|api| api.symbol() == frame.name)
}

fn means_something(frame: &ViewFrame) -> bool {
    frame.kind == FrameKind::User && !is_place(&frame.name) && !is_boring(&frame.name)
}

/// Whether it has no name: `libc.so.6+0x129ecb`.
fn is_place(name: &str) -> bool {
    name.rsplit_once("+0x").is_some_and(|(_, offset)| offset.chars().all(|c| c.is_ascii_hexdigit()))
}

fn is_boring(name: &str) -> bool {
    !is_python(name) && BORING.iter().any(|known| name.starts_with(known))
}

/// The last two parts of a path of modules, without the types of arguments. A Python function keeps its file and line.
fn brief(name: &str) -> String {
    let name = name.replace("(anonymous namespace)::", "");
    let arguments =
        name.find('(').filter(|at| *at > 0 && !name.get(..*at).is_some_and(|head| head.ends_with(' ')));
    let name = arguments.and_then(|at| name.get(..at)).unwrap_or(&name);
    let is_path = name.chars().all(|c| c.is_alphanumeric() || c == ':' || c == '_');
    let parts: Vec<&str> = if is_path { name.split("::").collect() } else { vec![name] };
    let last = parts.get(parts.len().saturating_sub(2)..).unwrap_or_default();
    shorten(&last.join("::"), LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cause::Cause;
    use crate::trace::record::{Frame, Space, Stack};

    fn path(api: &'static str, call: &'static str, functions: &[(&str, &str)]) -> String {
        let frames = functions.iter().map(|(function, module)| Frame {
            function: (*function).to_owned(),
            module: (*module).to_owned(),
            offset: 0x1f,
        });
        let stack = Stack { id: 1, space: Space::User, frames: frames.rev().collect(), truncated: false };
        let mut analysis = Analysis::default();
        analysis.stacks.insert(1, stack);
        let stall = Stall {
            pid: 1,
            tid: 1,
            cause: Cause::SockRecv,
            peer: String::new(),
            detail: String::new(),
            start_ns: 0,
            end_ns: 1,
            weight_ns: 1,
            in_flight: false,
            began_earlier: false,
            user_stack: 1,
            kernel_stack: 0,
            api,
            call,
        };
        calling_path(&analysis, &stall)
    }

    #[test]
    fn the_program_s_functions_and_the_call_are_told() {
        let stack = [
            ("_start", "job"),
            ("__libc_start_main", "libc.so.6"),
            ("main", "job"),
            ("gather", "job"),
            ("recv", "libc.so.6"),
        ];
        assert_eq!(path("", "recvfrom", &stack), "main → gather → recv");
        let inner = [("main", "job"), ("getaddrinfo", "libc.so.6"), ("poll", "libc.so.6")];
        assert_eq!(path("getaddrinfo", "poll", &inner), "main → getaddrinfo");
        let lock = [("main", "job"), ("pthread_mutex_lock", "libc.so.6"), ("__lll_lock_wait", "libc.so.6")];
        assert_eq!(path("", "futex", &lock), "main → pthread_mutex_lock → futex");
    }

    #[test]
    fn of_a_deep_stack_the_innermost_functions_stay() {
        let stack: Vec<(String, &str)> = (0..9).map(|at| (format!("f{at}"), "job")).collect();
        let stack: Vec<(&str, &str)> = stack.iter().map(|(name, module)| (name.as_str(), *module)).collect();
        assert_eq!(path("", "read", &stack), ".. → f5 → f6 → f7 → f8 → read");
    }

    #[test]
    fn runtimes_and_frames_without_names_are_passed_over() {
        let stack = [
            ("Py_BytesMain", "python3.12"),
            ("", "python3.12"),
            ("main (train.py:21)", ""),
            ("_PyEval_Vector", "python3.12"),
            ("poll (selectors.py:3)", ""),
            ("stallscope::demo::workload::gather_rank", "job"),
            ("std::io::Write::write_all", "job"),
        ];
        assert_eq!(
            path("", "sendto", &stack),
            "main (train.py:21) → poll (selectors.py:3) → workload::gather_rank → sendto"
        );
        let native: Vec<(&str, &str)> = vec![("Socket::connect", "libtorch.so"); 9];
        let deep = [vec![("a (x.py:1)", ""), ("b (x.py:2)", ""), ("c (x.py:3)", "")], native].concat();
        let deep = [deep, vec![("getaddrinfo", "libc.so.6"), ("__res_context_send", "libc.so.6")]].concat();
        let expected = ".. → b (x.py:2) → c (x.py:3) → .. → Socket::connect → Socket::connect → getaddrinfo";
        assert_eq!(path("", "poll", &deep), expected);
        assert_eq!(path("", "sendto", &[("", "libc.so.6")]), "", "nothing is known");
    }

    #[test]
    fn types_of_arguments_are_left_out() {
        assert_eq!(brief("c10d::detail::(anonymous namespace)::Op::run(int, std::string const&)"), "Op::run");
        assert_eq!(brief("_start_call (loop.py:7)"), "_start_call (loop.py:7)");
        assert_eq!(brief("(odd"), "(odd");
    }
}
