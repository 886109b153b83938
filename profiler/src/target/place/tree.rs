//! Reading sysfs below a root that can be another one for tests. Links are followed by hand: they are few, they stay
//! below the root, and they do not go round in circles.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// Links on the way to one file, at most.
const LINKS_MAX: u32 = 32;
/// Components of one path, at most.
const DEPTH_MAX: usize = 64;
/// Entries of one directory, at most.
pub(super) const ENTRIES_MAX: usize = 4096;
/// Attributes are a page at most.
pub(super) const TEXT_MAX: usize = 4096;

/// Where sysfs is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysRoot {
    path: PathBuf,
}

impl Default for SysRoot {
    fn default() -> SysRoot {
        SysRoot { path: PathBuf::from("/sys") }
    }
}

impl SysRoot {
    pub fn new(path: impl Into<PathBuf>) -> SysRoot {
        SysRoot { path: path.into() }
    }

    /// Where a folder of the machine is.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.path.join(relative)
    }

    /// The path of a file or folder below the root without links. `None` where it is not there, leads out of the root, or
    /// has too many links.
    pub(super) fn resolve(&self, relative: &str) -> Option<PathBuf> {
        let mut done = PathBuf::new();
        let mut todo: Vec<PathBuf> = parts(Path::new(relative))?;
        let mut links = 0;
        while let Some(part) = todo.pop() {
            if part.as_os_str() == ".." {
                if !done.pop() {
                    return None;
                }
                continue;
            }
            let next = done.join(&part);
            if next.components().count() > DEPTH_MAX {
                return None;
            }
            let full = self.path.join(&next);
            if full.symlink_metadata().ok()?.is_symlink() {
                links += 1;
                let more = parts(&full.read_link().ok()?)?;
                if links > LINKS_MAX || todo.len() + more.len() > DEPTH_MAX {
                    return None;
                }
                todo.extend(more);
            } else {
                done = next;
            }
        }
        Some(done)
    }

    /// The beginning of a regular file.
    pub(super) fn bytes(&self, relative: &str, limit: usize) -> Option<Vec<u8>> {
        let file = self.open(&self.resolve(relative)?)?;
        let mut bytes = Vec::new();
        // What was read before an error counts: without privilege `config` ends after 64 bytes.
        let read = file.take(limit as u64).read_to_end(&mut bytes);
        (read.is_ok() || !bytes.is_empty()).then_some(bytes)
    }

    fn open(&self, path: &Path) -> Option<File> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.path.join(path)).ok()?;
        file.metadata().ok()?.is_file().then_some(file)
    }

    /// An attribute without the line's end: printable ASCII, nothing else.
    pub(super) fn text(&self, relative: &str) -> Option<String> {
        let bytes = self.bytes(relative, TEXT_MAX)?;
        let text = std::str::from_utf8(&bytes).ok()?.trim();
        text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()).then(|| text.to_owned())
    }

    /// Names in a folder, sorted; those that could lead elsewhere are left out.
    pub(super) fn names(&self, relative: &str) -> Vec<String> {
        let Some(folder) = self.resolve(relative) else { return Vec::new() };
        let Ok(entries) = std::fs::read_dir(self.path.join(folder)) else { return Vec::new() };
        let name = |entry: std::fs::DirEntry| entry.file_name().into_string().ok();
        let mut names: Vec<String> =
            entries.take(ENTRIES_MAX).flatten().filter_map(name).filter(|name| is_plain(name)).collect();
        names.sort();
        names
    }
}

/// One component of a path, as sysfs has them.
pub(super) fn is_plain(name: &str) -> bool {
    let fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':' | b'@');
    !name.is_empty() && name.len() <= 128 && name != "." && name != ".." && name.bytes().all(fit)
}

/// The components of a relative path, the last one first.
fn parts(path: &Path) -> Option<Vec<PathBuf>> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => parts.push(PathBuf::from(name)),
            Component::ParentDir => parts.push(PathBuf::from("..")),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
        if parts.len() > DEPTH_MAX {
            return None;
        }
    }
    parts.reverse();
    Some(parts)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_below_the_root_and_nowhere_else() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "1").unwrap();
        let folder = outside.path().join("sys");
        std::fs::create_dir_all(folder.join("devices/card")).unwrap();
        std::fs::create_dir_all(folder.join("class")).unwrap();
        std::fs::write(folder.join("devices/card/width"), "16\n").unwrap();
        symlink("../devices/card", folder.join("class/card")).unwrap();
        symlink("../../secret", folder.join("class/out")).unwrap();
        symlink(outside.path().join("secret"), folder.join("class/absolute")).unwrap();
        symlink("b", folder.join("class/a")).unwrap();
        symlink("a", folder.join("class/b")).unwrap();
        symlink(".", folder.join("class/self")).unwrap();
        let root = SysRoot::new(&folder);
        assert_eq!(root.text("class/card/width").as_deref(), Some("16"));
        assert_eq!(root.resolve("class/card"), Some(PathBuf::from("devices/card")));
        for path in ["class/out", "class/absolute", "class/a", "../secret", "/etc/passwd", "class/none"] {
            assert_eq!(root.bytes(path, 10), None, "{path}");
        }
        let deep = format!("class/{}card/width", "self/".repeat(50));
        assert_eq!(root.text(&deep), None, "too many links");
    }

    #[test]
    fn what_is_no_text_and_no_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = SysRoot::new(folder.path());
        for (name, bytes) in
            [("binary", &b"\xff\xfe"[..]), ("control", b"\x1b[2J"), ("plain", b"8.0 GT/s PCIe\n")]
        {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(root.text("binary"), None);
        assert_eq!(root.text("control"), None);
        assert_eq!(root.text("fifo"), None);
        assert_eq!(root.text("plain").as_deref(), Some("8.0 GT/s PCIe"));
        std::fs::write(folder.path().join("large"), vec![b'1'; 1 << 20]).unwrap();
        assert_eq!(root.bytes("large", 100).map(|bytes| bytes.len()), Some(100));
        assert_eq!(root.names("").len(), 5);
    }
}
