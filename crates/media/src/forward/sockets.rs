//! From a socket's number to its place in a flow, by index.

use super::plan::Component;
use engine::SocketId;

const PAGE_BITS: u32 = 10;
const PAGE: usize = 1 << PAGE_BITS;

/// A flow, a side of it and a component, in 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

impl Place {
    const NONE: Place = Place(u32::MAX);

    pub(crate) fn new(flow: u32, side: usize, component: Component) -> Place {
        Place(flow << 2 | ((side as u32) & 1) << 1 | u32::from(component == Component::Rtcp))
    }

    pub(crate) fn flow(self) -> usize {
        (self.0 >> 2) as usize
    }

    pub(crate) fn side(self) -> usize {
        (self.0 >> 1 & 1) as usize
    }

    pub(crate) fn component(self) -> Component {
        if self.0 & 1 == 0 {
            Component::Rtp
        } else {
            Component::Rtcp
        }
    }
}

/// Pages of places; a page is made when a socket of it is first used, and stays.
#[derive(Debug)]
pub(crate) struct SocketTable {
    pages: Vec<Option<Box<[Place; PAGE]>>>,
    limit: u32,
    used: usize,
}

impl SocketTable {
    pub(crate) fn new(limit: u32) -> SocketTable {
        SocketTable {
            pages: Vec::new(),
            limit,
            used: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn get(&self, socket: SocketId) -> Option<Place> {
        let page = self.pages.get((socket.0 >> PAGE_BITS) as usize)?.as_ref()?;
        let place = *page.get(socket.0 as usize % PAGE)?;
        (place != Place::NONE).then_some(place)
    }

    /// Sockets above the limit were refused with their plan.
    pub(crate) fn set(&mut self, socket: SocketId, place: Place) {
        if socket.0 >= self.limit {
            return;
        }
        let number = (socket.0 >> PAGE_BITS) as usize;
        if self.pages.len() <= number {
            self.pages.resize_with(number + 1, || None);
        }
        if let Some(page) = self.pages.get_mut(number)
            && let Some(slot) = page
                .get_or_insert_with(|| Box::new([Place::NONE; PAGE]))
                .get_mut(socket.0 as usize % PAGE)
        {
            self.used += usize::from(*slot == Place::NONE);
            *slot = place;
        }
    }

    pub(crate) fn clear(&mut self, socket: SocketId) {
        if let Some(Some(page)) = self.pages.get_mut((socket.0 >> PAGE_BITS) as usize)
            && let Some(slot) = page.get_mut(socket.0 as usize % PAGE)
            && *slot != Place::NONE
        {
            *slot = Place::NONE;
            self.used -= 1;
        }
    }
}
