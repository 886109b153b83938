//! TUN and TAP devices: network interfaces whose other end is a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use super::super::error::DemoError;
use super::super::netns::Namespace;
use super::packet::Layer;

const PATH: &str = "/dev/net/tun";

/// Makes the interface `name` in the namespace. It vanishes with the file.
pub(super) fn make(namespace: &Namespace, name: &str, layer: Layer) -> Result<File, DemoError> {
    namespace.run(|| open(name, layer))?.map_err(|source| DemoError::Tun { name: name.to_owned(), source })
}

fn open(name: &str, layer: Layer) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(PATH)?;
    // SAFETY: an all-zero request is a valid one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name.iter_mut().take(room).zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let kind = match layer {
        Layer::Ip => libc::IFF_TUN,
        Layer::Ethernet => libc::IFF_TAP,
    };
    request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI) as i16;
    // SAFETY: the request outlives the call, which reads and writes no more than it.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}
