//! Children that a CUDA process has forked: they have its libraries and its memory, and cannot use its CUDA. To enter one
//! is of no use, and its threads' locks may be held by threads that it does not have.

use super::check::has_cuda;
use crate::target::ProcRoot;
use crate::target::maps::{self, Mapping};
use crate::target::process::process_info;
use crate::target::root::{SMALL, read_bounded};

/// What CUDA's own threads are called, of those that every process has that uses the GPU.
const THREADS: [&str; 2] = ["cuda-EvtHandlr", "cuda0"];
/// Threads whose names are looked at, at most.
const LOOKED_AT: usize = 4096;

/// The process whose CUDA this one has inherited and cannot use, if it is such a child: its memory is laid out as its
/// parent's, its parent uses the GPU, and nothing in it says that it came to use it by itself.
pub fn forked_from(root: &ProcRoot, pid: u32) -> Option<u32> {
    let parent = process_info(root, pid).ok()?.ppid;
    let own = maps::mappings(root, pid).ok()?;
    let parents = maps::mappings(root, parent).ok()?;
    let driver = cuda(&own)?;
    let is_fork = cuda(&parents)
        .is_some_and(|other| (other.start, other.file_id()) == (driver.start, driver.file_id()));
    let parent_uses_it = is_fork && (has_thread(root, parent) || devices(&parents).next().is_some());
    if !parent_uses_it {
        return None;
    }
    let inherited = |start| devices(&parents).any(|device| device.start == start);
    let uses_it = has_thread(root, pid) || devices(&own).any(|device| !inherited(device.start));
    (!uses_it).then_some(parent)
}

fn cuda(maps: &[Mapping]) -> Option<&Mapping> {
    maps.iter().find(|mapping| has_cuda(std::slice::from_ref(mapping)))
}

/// Memory of the NVIDIA driver's devices.
fn devices(maps: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    maps.iter().filter(|mapping| mapping.path.to_string_lossy().starts_with("/dev/nvidia"))
}

fn has_thread(root: &ProcRoot, pid: u32) -> bool {
    let tids = root.tids(pid).unwrap_or_default();
    tids.into_iter().take(LOOKED_AT).any(|tid| {
        read_bounded(&root.task_path(pid, tid, "comm"), SMALL)
            .is_ok_and(|comm| THREADS.iter().any(|name| comm.bytes.starts_with(name.as_bytes())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "S 7 1 1 0 -1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0";
    const DRIVER: &str = "1000-2000 r-xp 0 08:01 9 /usr/lib/libcuda.so.1\n";
    const DEVICE: &str = "5000-6000 rw-s 0 00:05 3 /dev/nvidia0\n";

    /// Process 7 and its child 8, with these maps and names of threads.
    fn forked(parent: (&str, &str), child: (&str, &str)) -> Option<u32> {
        let folder = tempfile::tempdir().unwrap();
        for (pid, (maps, comm)) in [(7, parent), (8, child)] {
            let own = folder.path().join(pid.to_string());
            std::fs::create_dir_all(own.join(format!("task/{pid}"))).unwrap();
            std::fs::write(own.join("maps"), maps).unwrap();
            std::fs::write(own.join("stat"), format!("{pid} (job) {STAT}")).unwrap();
            std::fs::write(own.join("status"), format!("Tgid:\t{pid}\n")).unwrap();
            std::fs::write(own.join(format!("task/{pid}/comm")), comm).unwrap();
        }
        forked_from(&ProcRoot::new(folder.path()), 8)
    }

    #[test]
    fn a_child_with_its_parents_cuda_and_none_of_its_own_is_told() {
        let with_device = format!("{DRIVER}{DEVICE}");
        assert_eq!(forked((&with_device, "job"), (DRIVER, "job")), Some(7));
        assert_eq!(forked((DRIVER, "cuda-EvtHandlr\n"), (DRIVER, "job")), Some(7));
        // Drivers that let a child have the mapping, which is where the parent's is.
        assert_eq!(forked((&with_device, "job"), (&with_device, "job")), Some(7));
    }

    #[test]
    fn a_child_with_cuda_of_its_own_is_not() {
        let with_device = format!("{DRIVER}{DEVICE}");
        let elsewhere = with_device.replace("5000-6000", "7000-8000");
        assert_eq!(forked((&with_device, "job"), (&elsewhere, "job")), None);
        assert_eq!(forked((&with_device, "job"), (DRIVER, "cuda-EvtHandlr\n")), None);
        // Loaded anew, by a program of its own.
        let anew = DRIVER.replace("1000-2000", "3000-4000");
        assert_eq!(forked((&with_device, "job"), (&anew, "job")), None);
        // The parent does not use what it has loaded: the child may come to.
        assert_eq!(forked((DRIVER, "job"), (DRIVER, "job")), None);
        assert_eq!(forked((&with_device, "job"), ("", "job")), None);
    }
}
