//! Calls between two endpoints.

use crate::common;

use common::*;
use engine::Transport;
use sip::*;
use std::time::Duration;

#[test]
fn call_has_six_messages_and_leaves_no_state() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut pair = Pair::plain();
        let leg = pair.call(0, transport);
        pair.run(Duration::from_millis(100));
        assert_eq!(
            pair.hosts[0].endpoint.state_of(leg),
            Some(LegState::Confirmed)
        );
        let RecordedIndication::Offered(theirs) = pair.hosts[1].log.indications[0] else {
            panic!("{:?}", pair.hosts[1].log.indications);
        };
        assert_eq!(
            pair.hosts[1].endpoint.state_of(theirs),
            Some(LegState::Confirmed)
        );
        let now = pair.now;
        pair.hosts[0]
            .endpoint
            .bye(leg, &MessageContent::default(), now)
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
        assert_eq!(
            pair.hosts[0].log.last(),
            &RecordedIndication::Ended(leg, Ending::Local)
        );
        assert_eq!(
            pair.hosts[1].log.last(),
            &RecordedIndication::Ended(theirs, Ending::Peer)
        );
        assert_eq!(pair.hosts[0].endpoint.census().legs, 0);
        pair.settle();
    }
}
