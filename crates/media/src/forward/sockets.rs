//! Lookup of flow, side and component by socket number, by index.

use super::plan::Component;
use engine::SocketId;

const PAGE_BITS: u32 = 10;
const PAGE_LEN: usize = 1 << PAGE_BITS;

/// Flow, side and component of a socket, in 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketOwner(u32);

impl SocketOwner {
    const NONE: SocketOwner = SocketOwner(u32::MAX);

    pub(crate) fn new(flow: u32, side: usize, component: Component) -> SocketOwner {
        SocketOwner(flow << 2 | ((side as u32) & 1) << 1 | u32::from(component == Component::Rtcp))
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

/// Socket owners in pages. A page is allocated when a socket of it is first used, and is kept.
#[derive(Debug)]
pub(crate) struct SocketTable {
    pages: Vec<Option<Box<[SocketOwner; PAGE_LEN]>>>,
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

    pub(crate) fn get(&self, socket: SocketId) -> Option<SocketOwner> {
        let page = self.pages.get((socket.0 >> PAGE_BITS) as usize)?.as_ref()?;
        let owner = *page.get(socket.0 as usize % PAGE_LEN)?;
        (owner != SocketOwner::NONE).then_some(owner)
    }

    /// Registers a socket. Sockets above the limit were refused with their plan.
    pub(crate) fn set(&mut self, socket: SocketId, owner: SocketOwner) {
        if socket.0 >= self.limit {
            return;
        }
        let number = (socket.0 >> PAGE_BITS) as usize;
        if self.pages.len() <= number {
            self.pages.resize_with(number + 1, || None);
        }
        if let Some(page) = self.pages.get_mut(number)
            && let Some(slot) = page
                .get_or_insert_with(|| Box::new([SocketOwner::NONE; PAGE_LEN]))
                .get_mut(socket.0 as usize % PAGE_LEN)
        {
            self.used += usize::from(*slot == SocketOwner::NONE);
            *slot = owner;
        }
    }

    pub(crate) fn clear(&mut self, socket: SocketId) {
        if let Some(Some(page)) = self.pages.get_mut((socket.0 >> PAGE_BITS) as usize)
            && let Some(slot) = page.get_mut(socket.0 as usize % PAGE_LEN)
            && *slot != SocketOwner::NONE
        {
            *slot = SocketOwner::NONE;
            self.used -= 1;
        }
    }
}
