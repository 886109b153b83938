//! Where the peer of a stall is, as far as a topology says.

use super::{FrameKind, Site, ViewFrame};
use crate::analysis::Analysis;
use crate::analysis::places::{Place, Relation};
use crate::model::cause::Cause;

/// `rack B cross-rack`, behind the peer of a leaf: of TCP connections, where racks are known at all.
pub(super) fn of_leaf(analysis: &Analysis, site: &Site<'_>) -> String {
    let over_tcp = matches!(
        site.cause,
        Cause::TcpConnect | Cause::TcpRetransmit | Cause::SockRecv | Cause::SockSend | Cause::NcclBootstrap
    );
    let place = if over_tcp { known_place(analysis, site) } else { None };
    match place {
        None => String::new(),
        Some(Place { rack: Some(rack), relation: Relation::Unknown, .. }) => format!("rack {rack}"),
        Some(Place { rack: Some(rack), relation, .. }) => format!("rack {rack} {}", relation.name()),
        Some(Place { rack: None, relation: Relation::Unknown, .. }) => "rack unknown".to_owned(),
        Some(Place { rack: None, relation, .. }) => relation.name().to_owned(),
    }
}

/// The frames below the peer in its view: relation, rack and host. Without a topology there are none.
pub(super) fn frames(analysis: &Analysis, site: &Site<'_>) -> Vec<ViewFrame> {
    if !analysis.places.has_racks() {
        return Vec::new();
    }
    let Some(place) = known_place(analysis, site) else {
        // A local socket, or a peer that could not be told.
        let relation = if site.peer.is_empty() { Relation::Unknown } else { Relation::SameHost };
        return vec![ViewFrame::new(relation.name(), FrameKind::Peer)];
    };
    let rack = place.rack.map_or_else(|| "rack unknown".to_owned(), |rack| format!("rack {rack}"));
    let address = || site.peer.rsplit_once(':').map_or(site.peer, |(address, _)| address);
    let host = place.host.unwrap_or_else(|| address().trim_matches(['[', ']']).to_owned());
    [place.relation.name(), &rack, &host].map(|name| ViewFrame::new(name, FrameKind::Peer)).into()
}

fn known_place(analysis: &Analysis, site: &Site<'_>) -> Option<Place> {
    if analysis.places.has_racks() { analysis.places.of_peer(site.pid, site.peer) } else { None }
}
