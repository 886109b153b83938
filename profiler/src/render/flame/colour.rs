//! Colours of frames: each cause has its own, the way there is pale.

use std::collections::HashMap;

use inferno::flamegraph::color::{Color, PaletteMap};

use crate::model::cause::Cause;
use crate::render::tree::FrameKind;

/// A colour for every one of `frames`. Frames of equal name share one, that of the last of their kinds: the
/// resolver's `getaddrinfo` is the same whether a stack leads through it or the probe alone saw it.
pub(super) fn palette<'f>(frames: impl IntoIterator<Item = (&'f str, FrameKind)>) -> PaletteMap {
    let mut kinds: HashMap<&str, FrameKind> = HashMap::new();
    for (name, kind) in frames {
        let known = kinds.entry(name).or_insert(kind);
        *known = kind.max(*known);
    }
    let mut palette = PaletteMap::default();
    // inferno's own root, `all`, has no name.
    palette.insert("", Color::new(225, 225, 225));
    for (name, kind) in kinds {
        palette.insert(name, shade(base(kind), name));
    }
    palette
}

fn base(kind: FrameKind) -> [u8; 3] {
    match kind {
        FrameKind::Task => [214, 218, 224],
        FrameKind::User => [240, 232, 212],
        FrameKind::Call => [205, 220, 235],
        FrameKind::Kernel => [232, 215, 200],
        FrameKind::Mark => [238, 238, 238],
        FrameKind::Peer => [214, 232, 218],
        FrameKind::Cause(cause) => of_cause(cause),
        // Darker, to stand out beside the stalls of the same cause that ended.
        FrameKind::InFlight(cause) => of_cause(cause).map(|channel| channel - channel / 6),
    }
}

/// Light enough for black text, far enough from each other to be told apart.
pub(in crate::render) const fn of_cause(cause: Cause) -> [u8; 3] {
    match cause {
        Cause::DnsResolve => [235, 92, 76],
        Cause::TcpConnect => [244, 148, 48],
        Cause::TcpRetransmit => [222, 120, 160],
        Cause::SockSend => [76, 190, 180],
        Cause::SockRecv => [96, 160, 230],
        Cause::NcclBootstrap => [176, 130, 220],
        Cause::RdmaSetup => [150, 200, 90],
        Cause::RdmaQueue => [110, 185, 80],
        Cause::RdmaWire => [80, 170, 110],
        Cause::RdmaCongestion => [160, 180, 50],
        Cause::RdmaRetry => [200, 170, 40],
        Cause::DmaMap => [190, 150, 110],
        Cause::GpuQueue => [236, 200, 60],
        Cause::GpuCopy => [226, 216, 100],
        Cause::NcclKernel => [150, 120, 205],
        Cause::PeerLate => [240, 128, 190],
        Cause::SchedRunq => [160, 170, 180],
        Cause::Lock => [190, 130, 90],
        Cause::Other => [196, 186, 176],
    }
}

/// The colour a little lighter or darker by the name, so that neighbours have an edge; the same name gets
/// the same shade in every picture.
fn shade(base: [u8; 3], name: &str) -> Color {
    // FNV-1a.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let step = (hash >> 32) % 25;
    let [r, g, b] = base.map(|channel| channel.saturating_add(step as u8).saturating_sub(12));
    Color::new(r, g, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_of_one_cause_look_alike_and_causes_do_not() {
        let distance =
            |a: [u8; 3], b: [u8; 3]| -> u32 { a.iter().zip(b).map(|(a, b)| u32::from(a.abs_diff(b))).sum() };
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            for other in &Cause::ALL[index + 1..] {
                assert!(distance(of_cause(cause), of_cause(*other)) > 36, "{cause} {other}");
            }
            let name = format!("[{cause}] peer");
            let shown = palette([(name.as_str(), FrameKind::Cause(cause))]).get(&name).unwrap();
            for (shown, base) in [shown.r, shown.g, shown.b].into_iter().zip(of_cause(cause)) {
                assert!(shown.abs_diff(base) <= 12, "{cause}");
            }
        }
    }

    #[test]
    fn the_order_of_stacks_does_not_change_the_colour() {
        let colour =
            |kinds: [FrameKind; 2]| palette(kinds.map(|kind| ("getaddrinfo", kind))).get("getaddrinfo");
        let both = colour([FrameKind::User, FrameKind::Call]);
        assert_eq!(both, colour([FrameKind::Call, FrameKind::User]));
        assert_eq!(both, colour([FrameKind::Call, FrameKind::Call]));
    }

    #[test]
    fn the_shade_depends_on_the_name_alone() {
        assert_eq!(shade([100, 100, 100], "main"), shade([100, 100, 100], "main"));
        assert_ne!(shade([100, 100, 100], "main"), shade([100, 100, 100], "resolve"));
    }
}
