//! Where the threads of a process that does not end are: what a test that gave up says.

use std::fmt::Write as _;
use std::fs;

/// The process and those that it started, thread by thread: state, what it sleeps in, the system call, and its kernel stack
/// where that may be read.
pub fn whereabouts(pid: u32) -> String {
    let mut text = String::new();
    let mut pending = vec![pid];
    while let Some(pid) = pending.pop() {
        for tid in tids(pid) {
            let read = |name: &str| {
                let file = fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}")).unwrap_or_default();
                file.split_whitespace().collect::<Vec<_>>().join(" ")
            };
            let stat = read("stat");
            let state =
                stat.rsplit_once(')').map_or("", |(_, behind)| behind).trim_start().get(..1).unwrap_or("?");
            let _ = writeln!(
                text,
                "process {pid} thread {tid} ({}) {state} in {}, system call {}; ran and waited for a processor {} ns; {}",
                read("comm"),
                read("wchan"),
                read("syscall"),
                read("schedstat"),
                read("stack"),
            );
            pending.extend(read("children").split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    text
}

fn tids(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_its_children_are_told_with_what_they_are_in() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        // The child shows under the thread that started it.
        let text = whereabouts(std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(text.contains(&format!("process {} thread", std::process::id())), "{text}");
        assert!(text.contains(&format!("process {} thread {}", child.id(), child.id())), "{text}");
    }
}
