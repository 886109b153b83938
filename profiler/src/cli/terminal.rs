//! How wide the terminal is that something is written to.

use std::os::fd::AsRawFd;

/// Columns of the terminal behind a descriptor; `None` where it is none, or does not say.
pub fn columns(of: &impl AsRawFd) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ fills in the `winsize` that it is given, which lives until the call has returned; the descriptor
    // is only asked, and one that is closed or no terminal is an error.
    let result = unsafe { libc::ioctl(of.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    // A terminal of which the size was never set says 0.
    (result == 0 && size.ws_col > 0).then(|| usize::from(size.ws_col))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_no_columns_and_a_terminal_has_its_own() {
        assert_eq!(columns(&std::fs::File::open("/dev/null").unwrap()), None);
        let size = nix::pty::Winsize { ws_row: 10, ws_col: 133, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = nix::pty::openpty(Some(&size), None).unwrap();
        assert_eq!(columns(&pty.slave), Some(133));
        let unset = nix::pty::openpty(None, None).unwrap();
        assert_eq!(columns(&unset.slave), None);
    }
}
