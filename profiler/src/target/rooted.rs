//! Files inside the root directory of a process, which may be a container's and is not trusted: links
//! are resolved against that root and cannot lead out of it, and nothing but regular files is opened.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, fstatfs};

use super::root::{Contents, ProcRoot, ReadError, read_file_bounded};

/// Links followed in one path at most, as in the kernel.
const LINKS: usize = 40;
/// Components of one path at most, those of links included.
const COMPONENTS: usize = 1024;

/// Entries of one directory listed at most.
const ENTRIES: usize = 16384;

/// Reads a file by the path that the process would use for it.
pub fn read(root: &ProcRoot, pid: u32, path: &str, limit: usize) -> Result<Contents, ReadError> {
    let shown = || root.process_path(pid, "root").join(path.trim_start_matches('/'));
    let file = open(root, pid, Path::new(path)).map_err(|source| ReadError::new(shown(), source))?;
    read_file_bounded(file, limit).map_err(|source| ReadError::new(shown(), source))
}

/// Names in a directory (the first 16384), by the path that the process would use for it.
pub fn list(root: &ProcRoot, pid: u32, path: &Path) -> io::Result<Vec<String>> {
    let found = find(root, pid, path)?;
    let entries = std::fs::read_dir(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let names = entries.take(ENTRIES).map_while(Result::ok).map(|entry| entry.file_name());
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

/// Opens a regular file by the path that the process would use for it.
pub fn open(root: &ProcRoot, pid: u32, path: &Path) -> io::Result<File> {
    reopen_regular(&find(root, pid, path)?)
}

/// Opens a path of ours, regular files only: opening a device or a pipe could have effects or block.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    reopen_regular(&found.into())
}

/// Whether the file system shows other device numbers in `stat` than in a memory map.
pub fn has_device_of_its_own(file: &File) -> bool {
    let own: [FsType; 2] = [OVERLAYFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC];
    fstatfs(file).is_ok_and(|stat| own.contains(&stat.filesystem_type()))
}

fn find(root: &ProcRoot, pid: u32, path: &Path) -> io::Result<OwnedFd> {
    let root = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(root.process_path(pid, "root"))?;
    match find_in_kernel(root.as_fd(), path) {
        // Kernels before 5.6 do not have the call, and container runtimes may filter it.
        Err(Errno::ENOSYS | Errno::EPERM | Errno::EINVAL) => Ok(find_by_steps(root.as_fd(), path)?),
        other => Ok(other?),
    }
}

fn reopen_regular(found: &OwnedFd) -> io::Result<File> {
    let kind = SFlag::from_bits_truncate(fstat(found)?.st_mode) & SFlag::S_IFMT;
    if kind != SFlag::S_IFREG {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

fn find_in_kernel(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(root, path, how)
}

/// The same in userspace. Every step opens one component without following it, so that a link that is
/// swapped in between cannot lead astray; `..` goes back to the directory that was opened before.
fn find_by_steps(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let mut pending: Vec<OsString> = Vec::new();
    push_components(&mut pending, path)?;
    // Directories walked through, and at the end the file; empty: the root itself.
    let mut walked: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    while let Some(name) = pending.pop() {
        if name == ".." {
            walked.pop();
            continue;
        }
        if name == "/" {
            walked.clear();
            continue;
        }
        let directory = walked.last().map_or(root, AsFd::as_fd);
        let next = openat(directory, name.as_os_str(), flags, Mode::empty())?;
        let kind = SFlag::from_bits_truncate(fstat(&next)?.st_mode) & SFlag::S_IFMT;
        if kind != SFlag::S_IFLNK {
            walked.push(next);
            continue;
        }
        links += 1;
        if links > LINKS {
            return Err(Errno::ELOOP);
        }
        push_components(&mut pending, &PathBuf::from(readlinkat(&next, "")?))?;
    }
    walked.pop().ok_or(Errno::EISDIR)
}

/// Puts the components in front of what is still to be walked (the list is walked from its end).
fn push_components(pending: &mut Vec<OsString>, path: &Path) -> Result<(), Errno> {
    let mut components: Vec<OsString> = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir => components.push("/".into()),
            Component::ParentDir => components.push("..".into()),
            Component::Normal(name) if name.as_bytes().len() <= 255 => components.push(name.to_owned()),
            Component::Normal(_) => return Err(Errno::ENAMETOOLONG),
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
    pending.extend(components.into_iter().rev());
    if pending.len() > COMPONENTS { Err(Errno::ENAMETOOLONG) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A made-up `/proc/7/root` beside which a file lies that must not be reached.
    fn container() -> (tempfile::TempDir, ProcRoot) {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("7/root");
        std::fs::create_dir_all(inside.join("etc")).unwrap();
        std::fs::create_dir_all(inside.join("run/systemd")).unwrap();
        std::fs::write(inside.join("run/systemd/stub.conf"), "inside").unwrap();
        std::fs::write(directory.path().join("7/outside"), "outside").unwrap();
        symlink("/run/systemd/stub.conf", inside.join("etc/absolute")).unwrap();
        symlink("../run/./systemd/stub.conf", inside.join("etc/relative")).unwrap();
        symlink("../../../../../../outside", inside.join("etc/escape")).unwrap();
        symlink("loop", inside.join("etc/loop")).unwrap();
        symlink("/etc", inside.join("etc/again")).unwrap();
        let root = ProcRoot::new(directory.path());
        (directory, root)
    }

    fn both(root: &ProcRoot, path: &str) -> [Result<String, Errno>; 2] {
        let directory = File::open(root.process_path(7, "root")).unwrap();
        [
            find_in_kernel(directory.as_fd(), Path::new(path)),
            find_by_steps(directory.as_fd(), Path::new(path)),
        ]
        .map(|found| {
            let mut text = String::new();
            reopen_regular(&found?).unwrap().read_to_string(&mut text).unwrap();
            Ok(text)
        })
    }

    #[test]
    fn links_are_resolved_inside_the_root() {
        let (_directory, root) = container();
        for path in ["/etc/absolute", "/etc/relative", "/etc/again/again/absolute", "/../etc/absolute"] {
            assert_eq!(both(&root, path), [Ok("inside".into()), Ok("inside".into())], "{path}");
        }
        assert_eq!(read(&root, 7, "/etc/absolute", 3).unwrap().bytes, b"ins");
    }

    #[test]
    fn no_link_leads_out_of_the_root() {
        let (_directory, root) = container();
        assert_eq!(both(&root, "/etc/escape"), [Err(Errno::ENOENT), Err(Errno::ENOENT)]);
        assert_eq!(both(&root, "/../outside"), [Err(Errno::ENOENT), Err(Errno::ENOENT)]);
    }

    #[test]
    fn a_loop_of_links_ends() {
        let (_directory, root) = container();
        assert_eq!(both(&root, "/etc/loop"), [Err(Errno::ELOOP), Err(Errno::ELOOP)]);
    }

    #[test]
    fn a_pipe_in_place_of_a_file_is_refused_and_does_not_block() {
        let (directory, root) = container();
        let path = ProcRoot::new(directory.path()).process_path(7, "root").join("etc/resolv.conf");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let error = read(&root, 7, "/etc/resolv.conf", 100).unwrap_err();
        assert!(error.to_string().ends_with("not a regular file"), "{error}");
        assert!(open_regular(&path).is_err());
        assert!(read(&root, 7, "/etc", 100).is_err());
        assert_eq!(list(&root, 7, Path::new("/run")).unwrap(), ["systemd"]);
    }
}
