//! Counted drops: every way in which something from the network is discarded has a name, a text and a counter.

/// Declares the drop reasons once; enum, names, texts and counters come from this list.
macro_rules! drop_reasons {
    ($($variant:ident $name:literal $text:literal;)*) => {
        /// Why something from the network was discarded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum DropReason { $(#[doc = $text] $variant,)* }

        impl DropReason {
            /// All of them, in order of declaration.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)*];
            /// The name used in metrics, events and JSON.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }
            /// What it means, in a sentence.
            pub const fn text(self) -> &'static str {
                match self { $(DropReason::$variant => $text,)* }
            }
        }
    };
}

drop_reasons! {
    SipUnparsable "sip_unparsable" "Bytes on a SIP port in which no SIP message can be found, so that no answer is possible.";
    SipMalformedResponse "sip_malformed_response" "A SIP response that breaks the grammar or lacks a mandatory header.";
    SipMalformedAck "sip_malformed_ack" "A malformed ACK; an ACK is never answered.";
    SipStrayResponse "sip_stray_response" "A SIP response that belongs to no client transaction of ours.";
    SipStrayAck "sip_stray_ack" "An ACK that belongs to no transaction and no dialog.";
    SipRefusedAck "sip_refused_ack" "The ACK of a refusal of ours of which nothing was kept.";
    SipUnread "sip_unread" "A new call dropped unread under an overload so large that not even all refusals could be said; with it, what a full socket loses meanwhile.";
    SipForeignVia "sip_foreign_via" "A SIP response whose topmost Via is not ours (RFC 3261 section 18.1.2).";
    SipRetransmission "sip_retransmission" "A retransmission absorbed by its transaction.";
    SipTooLarge "sip_too_large" "A SIP message above the configured limit of size.";
    SipAnswerTooLarge "sip_answer_too_large" "An answer over UDP to a source that is not known, above twice the bytes of its requests; not sent.";
    SipKeepAlive "sip_keep_alive" "A keep-alive of RFC 5626 (or an empty datagram) taken in.";
    SipUnauthorised "sip_unauthorised" "A request from an address that no interface serves, dropped without an answer.";
    SipTableFull "sip_table_full" "No room left in a table (transactions, dialogs, registrations); refused where an answer is possible.";
    SipNotHanded "sip_not_handed" "A message of another worker's that could not be handed to it: its queue was full, or it does not know the listening point.";
    SipPointClosed "sip_point_closed" "A request or keep-alive at a listening point that the configuration no longer has, and that belongs to no dialog or transaction there.";
    SipStrayUnreachable "sip_stray_unreachable" "The network's word that a datagram could not be delivered (ICMP), which belongs to no request that waits for its first response.";
    SipStreamBroken "sip_stream_broken" "A stream connection whose framing is lost; closed.";
    MediaNoFlow "media_no_flow" "A packet on a media port that no call holds at present.";
    MediaStranger "media_stranger" "A packet from an address other than the one the flow is locked to.";
    MediaLearning "media_learning" "One of the first packets from an address that is still being learned (symmetric RTP), or one that may not be learned yet.";
    MediaFamily "media_family" "A packet of the other address family than signalled.";
    MediaMalformed "media_malformed" "Not RTP, not RTCP: wrong version, too short, or lengths that do not fit.";
    MediaNotLatched "media_not_latched" "The other side's address is not known yet, so there is nowhere to send to.";
    MediaUnexpectedRtcp "media_unexpected_rtcp" "RTCP on an RTP port (or the reverse) without rtcp-mux.";
    MediaNotTranscoded "media_not_transcoded" "A packet of a call that is transcoded whose payload was not agreed on, cannot be decoded or lasts longer than 240 ms.";
    MediaTooLate "media_too_late" "A packet of a call that is transcoded that came after its place had been filled.";
    MediaHeld "media_held" "A packet in a direction that the offer and answer have closed.";
    MediaTooLarge "media_too_large" "A datagram larger than any media packet.";
    MediaFlood "media_flood" "Far more packets on one media port than media can be; told when the port is closed.";
    MediaTooManySources "media_too_many_sources" "More synchronisation sources on one flow than are kept.";
    RoomPayload "room_payload" "RTP for a conference of a payload type that was not agreed, or that its codec cannot read.";
    RoomLate "room_late" "RTP for a conference that came after its time had been played, or that came twice.";
    RoomOverrun "room_overrun" "RTP for a conference beyond what its jitter buffer holds.";
    StunUnexpected "stun_unexpected" "STUN on a flow that uses no ICE.";
    DnsUnexpected "dns_unexpected" "A DNS answer that answers no open question of ours, or not truthfully.";
    DnsMalformed "dns_malformed" "A DNS message that cannot be read.";
    SrtpMalformed "srtp_malformed" "No SRTP or SRTCP: header, payload, index, MKI and tag do not fit into its length.";
    SrtpAuthentication "srtp_authentication" "The authentication tag does not match: altered on the way, cut off, or sealed with another key.";
    SrtpReplayed "srtp_replayed" "An SRTP or SRTCP packet whose index was taken in before.";
    SrtpTooOld "srtp_too_old" "An SRTP or SRTCP packet whose index lies before the replay window.";
    SrtpUnknownMki "srtp_unknown_mki" "The master key identifier is none of those that were agreed.";
    SrtpNoKey "srtp_no_key" "No master key is there, or none is valid for the packet's index.";
    SrtpKeyExhausted "srtp_key_exhausted" "The master key has protected as many packets as it may; a new one is needed.";
    SrtpTooManySources "srtp_too_many_sources" "More synchronisation sources under one set of SRTP keys than are kept.";
    SrtpNoRoom "srtp_no_room" "The buffer has no room behind the packet for index, MKI and tag.";
    SrtpIndexReused "srtp_index_reused" "A packet to be sealed whose sequence number was sealed before, or lies before the window: its keystream may not be used twice.";
    DtlsUnexpected "dtls_unexpected" "DTLS on a flow that uses none, or whose association has failed or ended.";
    StunMalformed "stun_malformed" "No STUN message: lengths that do not fit, or a wrong FINGERPRINT.";
    StunUnauthorised "stun_unauthorised" "A STUN request without the credentials of its flow; answered with an error at most.";
    IceCandidate "ice_candidate" "A candidate of a peer's ICE agent beyond those that are kept of one.";
    NgUnauthorised "ng_unauthorised" "A command for the media node from a source that may not send any; a connection of such a source is closed.";
    NgMalformed "ng_malformed" "Something at a command port of the media node that is no message of the \"ng\" protocol.";
    NgUnasked "ng_unasked" "A reply of a media node to nothing that was asked, or no reply at all, at our socket for commands.";
    NgLate "ng_late" "A reply of a media node that came after it had been given up.";
    MediaReplaced "media_replaced" "Media for a party that a sound was being played to in its place.";
    RecordOverflow "record_overflow" "A packet of a recorded call, or a piece of its recording, for which there was no room on the way to the disk.";
    LinkLost "link_lost" "Lost by a simulated link.";
    LinkQueueFull "link_queue_full" "The queue of a simulated link was full.";
    SendFailed "send_failed" "The operating system refused to send it.";
    TlsRefused "tls_refused" "A connection on which TLS came to nothing: certificate, name, version, cipher.";
    TlsBroken "tls_broken" "A TLS connection with a record that cannot be opened, or a breach of the protocol; closed.";
    WebSocketRefused "websocket_refused" "A WebSocket that did not come about: a request that is none, or of an origin, host or protocol that is not served; an answer that does not open it.";
    WebSocketBroken "websocket_broken" "A WebSocket with a frame that breaks the rules or is too large; closed.";
    StreamTooSlow "stream_too_slow" "A connection that did not finish its handshake, or its message, in time; closed.";
    RuleRefused "rule_refused" "A request refused by a header rule.";
    RuleEditRefused "rule_edit_refused" "A change that a header rule wanted and that would have broken the message; the message went on without it.";
    RuleConditionFailed "rule_condition_failed" "A condition of a header rule that had no value for a message (a text that is no number); taken for false.";
    StreamBackpressure "stream_backpressure" "Bytes for a peer that does not read; its connection was closed.";
}

/// A counter per [`DropReason`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drops {
    counts: Box<[u64]>,
}

impl Default for Drops {
    fn default() -> Self {
        Drops::new()
    }
}

impl Drops {
    /// All zero.
    pub fn new() -> Drops {
        Drops {
            counts: vec![0; DropReason::ALL.len()].into_boxed_slice(),
        }
    }

    /// Counts one.
    pub fn count(&mut self, reason: DropReason) {
        if let Some(count) = self.counts.get_mut(reason as usize) {
            *count += 1;
        }
    }

    /// Counts `n` at once.
    pub fn add(&mut self, reason: DropReason, n: u64) {
        if let Some(count) = self.counts.get_mut(reason as usize) {
            *count += n;
        }
    }

    /// How many so far.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.counts.get(reason as usize).copied().unwrap_or(0)
    }

    /// The sum over all reasons.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Drops) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts.iter()) {
            *mine += theirs;
        }
    }

    /// Those above zero, in order of declaration.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.get(reason)))
            .filter(|&(_, count)| count > 0)
    }
}
