//! Media of calls that were read back.

use super::CallMedia;
use config::{MediaSecurity, Transcoding};
use std::sync::Arc;

/// Replaces a value by an equal one that is shared.
fn share<T: PartialEq>(own: Option<&mut Arc<T>>, shared: &Arc<T>) {
    if let Some(own) = own
        && own == shared
    {
        *own = Arc::clone(shared);
    }
}

impl CallMedia {
    /// Shares settings of sides that are equal to these: media that was read back has its own copies.
    pub fn share_settings(
        &mut self,
        security: &Arc<MediaSecurity>,
        transcoding: &Arc<Transcoding>,
    ) {
        let previous = self.previous_sides.iter_mut();
        let previous = previous.flat_map(|sides| sides.iter_mut());
        let sides = self.sides.iter_mut();
        let sides = sides.chain(previous.map(|previous| &mut previous.media));
        let others = self.branches.iter_mut();
        for side in sides.chain(others.flat_map(|branches| branches.media_mut())) {
            share(side.security.as_mut(), security);
            share(side.transcoding.as_mut(), transcoding);
        }
        let sides = self.lines.iter_mut().flatten();
        let sides = sides.flat_map(|line| &mut line.sides);
        let others = self.branches.iter_mut();
        let sides = sides.chain(others.flat_map(|branches| branches.sides_mut()));
        let own = sides.filter_map(|side| side.security.as_deref_mut());
        let previous = self.previous_sides.iter_mut();
        let previous = previous.flat_map(|sides| sides.iter_mut());
        for own in own.chain(previous.flat_map(|previous| previous.security_mut())) {
            own.share_policy(security);
        }
    }
}
