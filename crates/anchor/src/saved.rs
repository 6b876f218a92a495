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
        let previous = self.previous_side.as_deref_mut();
        let sides = self.sides.iter_mut();
        for side in sides.chain(previous.map(|previous| &mut previous.media)) {
            share(side.security.as_mut(), security);
            share(side.transcoding.as_mut(), transcoding);
        }
        for line in self.lines.iter_mut().flatten() {
            for side in &mut line.sides {
                if let Some(own) = side.security.as_deref_mut() {
                    own.share_policy(security);
                }
            }
        }
    }
}
