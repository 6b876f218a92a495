//! Calls between two endpoints.

use crate::common;

use common::*;
use engine::Transport;
use sip::*;
use std::time::Duration;

#[test]
fn a_call_has_six_messages_and_leaves_nothing() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut pair = Pair::plain();
        let leg = pair.call(0, transport);
        pair.run(Duration::from_millis(100));
        assert_eq!(
            pair.hosts[0].endpoint.state_of(leg),
            Some(LegState::Confirmed)
        );
        let Said::Offered(theirs) = pair.hosts[1].log.said[0] else {
            panic!("{:?}", pair.hosts[1].log.said);
        };
        assert_eq!(
            pair.hosts[1].endpoint.state_of(theirs),
            Some(LegState::Confirmed)
        );
        let now = pair.now;
        pair.hosts[0]
            .endpoint
            .bye(leg, &Content::default(), now)
            .unwrap();
        pair.run(Duration::from_millis(100));
        assert_eq!(
            pair.steps(),
            [
                "0 INVITE",
                "1 180 INVITE",
                "1 200 INVITE",
                "0 ACK",
                "0 BYE",
                "1 200 BYE"
            ],
            "{transport}"
        );
        assert_eq!(pair.hosts[0].log.last(), &Said::Ended(leg, Ending::Us));
        assert_eq!(pair.hosts[1].log.last(), &Said::Ended(theirs, Ending::Peer));
        assert_eq!(pair.hosts[0].endpoint.census().legs, 0);
        pair.settle();
    }
}
