//! Lines `host rack`.

use super::{Topology, TopologyError, without_comment};

pub(super) fn parse(text: &str) -> Result<Topology, TopologyError> {
    let mut topology = Topology::default();
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let at = offset + (line.len() - line.trim_start().len());
        offset += line.len();
        let words: Vec<&str> = without_comment(line).split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            [host, rack] => {
                topology
                    .rack(rack)
                    .and_then(|rack| topology.add_host(host, rack))
                    .map_err(|message| TopologyError::at(text, at, message))?;
            }
            other => {
                let message = format!("expected `host rack`, found {} words", other.len());
                return Err(TopologyError::at(text, at, message));
            }
        }
    }
    Ok(topology)
}
