//! Which process has which socket, from the links in `/proc/PID/fd`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::root::{ProcRoot, read_link};

/// The list is read again after this time, so that closed descriptors go.
const AGE: Duration = Duration::from_secs(1);
/// A socket that nobody was known to have makes us look again, but not more often than this.
const PAUSE: Duration = Duration::from_millis(100);
/// Looking must not take more than one part in so many of the time.
const SHARE: u32 = 50;
/// Sockets remembered at most.
const SOCKETS: usize = 1 << 18;

/// A descriptor of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub pid: u32,
    pub fd: i32,
}

/// Sockets of the targets by inode.
#[derive(Debug)]
pub struct Owners {
    root: ProcRoot,
    by_inode: HashMap<u32, Owner>,
    /// Sockets of this machine that were not the targets' at the last look.
    strangers: HashSet<u32>,
    looked: Option<Instant>,
    cost: Duration,
}

impl Owners {
    pub fn new(root: ProcRoot) -> Owners {
        Owners {
            root,
            by_inode: HashMap::new(),
            strangers: HashSet::new(),
            looked: None,
            cost: Duration::ZERO,
        }
    }

    /// Makes the next [`Owners::refresh`] look in any case.
    pub fn expire(&mut self) {
        self.looked = None;
    }

    /// Brings the list up to date for these sockets, if that is due; `pids` are the targets.
    pub fn refresh(&mut self, pids: &BTreeSet<u32>, inodes: impl Iterator<Item = u32>) {
        let unknown = |inode: u32| !self.by_inode.contains_key(&inode) && !self.strangers.contains(&inode);
        let inodes: Vec<u32> = inodes.filter(|inode| *inode != 0).take(SOCKETS).collect();
        let any_unknown = inodes.iter().copied().any(unknown);
        let pause = (self.cost * SHARE).max(if any_unknown { PAUSE } else { AGE });
        if self.looked.is_some_and(|looked| looked.elapsed() < pause) {
            return;
        }
        self.look(pids);
        self.strangers = inodes.into_iter().filter(|inode| !self.by_inode.contains_key(inode)).collect();
    }

    /// The owner of a socket; of several (after a fork) the oldest process by its id.
    pub fn of(&self, inode: u32) -> Option<Owner> {
        self.by_inode.get(&inode).copied()
    }

    fn look(&mut self, pids: &BTreeSet<u32>) {
        let begin = Instant::now();
        self.by_inode.clear();
        for &pid in pids {
            for fd in self.root.fds(pid).unwrap_or_default() {
                let link = read_link(&self.root.process_path(pid, &format!("fd/{fd}")));
                let inode = link.ok().as_deref().and_then(socket_inode);
                if let Some(inode) = inode
                    && self.by_inode.len() < SOCKETS
                {
                    let owner = Owner { pid, fd: i32::try_from(fd).unwrap_or(-1) };
                    self.by_inode.entry(inode).or_insert(owner);
                }
            }
        }
        self.cost = begin.elapsed();
        self.looked = Some(Instant::now());
    }
}

/// `socket:[4711]`.
fn socket_inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn fake(links: &[(u32, u32, &str)]) -> (tempfile::TempDir, ProcRoot) {
        let directory = tempfile::tempdir().unwrap();
        for (pid, fd, target) in links {
            let fds = directory.path().join(format!("{pid}/fd"));
            std::fs::create_dir_all(&fds).unwrap();
            symlink(target, fds.join(fd.to_string())).unwrap();
        }
        let root = ProcRoot::new(directory.path());
        (directory, root)
    }

    #[test]
    fn knows_sockets_of_the_targets_alone() {
        let (_directory, root) = fake(&[
            (4, 0, "/dev/null"),
            (4, 3, "socket:[70]"),
            (5, 9, "socket:[70]"),
            (6, 1, "socket:[80]"),
            (4, 4, "socket:[x]"),
        ]);
        let mut owners = Owners::new(root);
        owners.refresh(&BTreeSet::from([4, 5, 99]), [70, 80].into_iter());
        assert_eq!(owners.of(70), Some(Owner { pid: 4, fd: 3 }));
        assert_eq!(owners.of(80), None);
    }

    #[test]
    fn a_new_descriptor_is_found_after_the_list_expired() {
        let (directory, root) = fake(&[(4, 3, "socket:[70]")]);
        let mut owners = Owners::new(root);
        let pids = BTreeSet::from([4]);
        owners.refresh(&pids, [70].into_iter());
        symlink("socket:[71]", directory.path().join("4/fd/5")).unwrap();
        std::fs::remove_file(directory.path().join("4/fd/3")).unwrap();
        owners.expire();
        owners.refresh(&pids, [70, 71].into_iter());
        assert_eq!((owners.of(70), owners.of(71)), (None, Some(Owner { pid: 4, fd: 5 })));
    }
}
