//! Descriptions as they are written for a side.

use super::sdp::{LineTransport, parse_media, raise_version, rewrite};
use super::{CallMedia, MediaPlane, Side, hiding};
use smallvec::SmallVec;

impl CallMedia {
    /// Appends `sdp` as written for `towards`.
    pub(super) fn write(
        &mut self,
        plane: &mut MediaPlane,
        towards: Side,
        sdp: &[u8],
        offers: bool,
        out: &mut Vec<u8>,
    ) {
        let from = out.len();
        match self.secures_media() {
            true => self.write_with_security(plane, towards, sdp, offers, out),
            false => self.write_plain(towards, sdp, out),
        }
        let steps = self.version_steps.get(towards.index()).copied();
        if let Some(steps) = steps.filter(|steps| *steps != 0) {
            raise_version(out, from, steps);
        }
        if self.side(towards).hides {
            hiding::description(out, from);
        }
    }

    fn write_plain(&mut self, towards: Side, sdp: &[u8], out: &mut Vec<u8>) {
        let ports: SmallVec<[u16; 4]> = match parse_media(sdp) {
            Ok(facts) => facts
                .iter()
                .enumerate()
                .map(|(index, fact)| match self.lines.get_mut(index) {
                    Some(Some(line))
                        if fact.port != 0 && fact.carriage != LineTransport::Stream =>
                    {
                        line.sides.get_mut(towards.index()).map_or(0, |side| {
                            side.announced.current = true;
                            side.pair.rtp().port()
                        })
                    }
                    _ => 0,
                })
                .collect(),
            Err(_) => return,
        };
        if let Some(side) = self.sides.get(towards.index()) {
            rewrite(sdp, side.advertised, &ports, out);
        }
    }
}
