//! Counted drops: every reason for which input from the network is discarded has a name, a text and a counter.

/// Declares the drop reasons once; enum, names, texts and counters are generated from this list.
macro_rules! drop_reasons {
    ($($variant:ident $name:literal $text:literal;)*) => {
        /// The reason for which input from the network was discarded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum DropReason { $(#[doc = $text] $variant,)* }

        impl DropReason {
            /// All reasons, in order of declaration.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)*];
            /// The name used in metrics, events and JSON.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }
            /// The meaning, in a sentence.
            pub const fn text(self) -> &'static str {
                match self { $(DropReason::$variant => $text,)* }
            }
        }
    };
}

drop_reasons! {
    SipUnparsable "sip_unparsable" "Bytes on a SIP port that contain no SIP message, so that no response is possible.";
    SipMalformedResponse "sip_malformed_response" "A SIP response that breaks the grammar or lacks a mandatory header.";
    SipMalformedAck "sip_malformed_ack" "A malformed ACK; an ACK is never answered.";
    SipStrayResponse "sip_stray_response" "A SIP response that matches no client transaction.";
    SipStrayAck "sip_stray_ack" "An ACK that matches no transaction and no dialog.";
    SipRefusedAck "sip_refused_ack" "The ACK of a stateless refusal.";
    SipShed "sip_shed" "A new call shed by the socket filter, under an overload in which not even all refusals could be sent; includes datagrams lost to a full socket buffer in that time.";
    SipViaMismatch "sip_via_mismatch" "A SIP response whose topmost Via is not of this host (RFC 3261 section 18.1.2).";
    SipRetransmission "sip_retransmission" "A retransmission absorbed by its transaction.";
    SipTooLarge "sip_too_large" "A SIP message larger than the configured limit.";
    SipAnswerTooLarge "sip_answer_too_large" "A response over UDP to an unauthenticated source that is larger than twice the bytes of its requests; not sent.";
    SipChallengeOmitted "sip_challenge_omitted" "A response over UDP to an unauthenticated source from which challenges were omitted, the last of `[realm] algorithms` first, because it would be larger than twice the bytes of its request; sent.";
    SipKeepAlive "sip_keep_alive" "A keep-alive of RFC 5626, or an empty datagram, processed.";
    SipSourceNotAllowed "sip_source_not_allowed" "A request from an address that no interface allows; dropped without a response.";
    SipTableFull "sip_table_full" "A table is full (transactions, dialogs, registrations); refused if a response is possible.";
    SipHandoffFailed "sip_handoff_failed" "A message for another worker that could not be handed off: its mailbox was full, or it does not have the listener.";
    SipListenerClosed "sip_listener_closed" "A request or keep-alive at a listener that was removed from the configuration, outside of any dialog or transaction there.";
    SipUnmatchedIcmp "sip_unmatched_icmp" "An ICMP error about a datagram of no request that waits for its first response.";
    SipStreamBroken "sip_stream_broken" "A stream connection whose framing is lost; closed.";
    MediaNoFlow "media_no_flow" "A packet on a media port that no call uses at present.";
    MediaUnexpectedSource "media_unexpected_source" "A packet from an address other than the latched one.";
    MediaLatching "media_latching" "One of the first packets of an address before latching (symmetric RTP) is complete, or of an address that may not be latched yet.";
    MediaAddressFamily "media_address_family" "A packet of the other address family than signalled.";
    MediaMalformed "media_malformed" "Neither RTP nor RTCP: wrong version, too short, or inconsistent lengths.";
    MediaNoDestination "media_no_destination" "A packet for the other side before the media address of that side is known.";
    MediaUnexpectedRtcp "media_unexpected_rtcp" "RTCP on an RTP port, or the reverse, without rtcp-mux.";
    MediaNotTranscoded "media_not_transcoded" "A packet of a transcoded call whose payload was not negotiated, cannot be decoded or is longer than 240 ms; in other calls, of a codec that the other side does not have.";
    MediaTooLate "media_too_late" "A packet of a transcoded call received after its time had been concealed.";
    MediaDirectionClosed "media_direction_closed" "A packet in a direction that the offer and answer have closed.";
    MediaTooLarge "media_too_large" "A datagram larger than any media packet.";
    MediaFlood "media_flood" "Packets on a media port at a rate far above that of media; counted when the port is closed.";
    MediaTooManySources "media_too_many_sources" "More synchronisation sources on one media port than are stored.";
    ConferencePayload "conference_payload" "RTP for a conference with a payload type that was not negotiated, or with a payload that its codec cannot decode.";
    ConferenceLate "conference_late" "RTP for a conference received after its time of playout, or a duplicate.";
    ConferenceOverrun "conference_overrun" "RTP for a conference beyond the capacity of its jitter buffer.";
    StunUnexpected "stun_unexpected" "STUN on a media port without ICE.";
    DnsUnexpected "dns_unexpected" "A DNS response that matches no open query, or not in all fields.";
    DnsMalformed "dns_malformed" "A malformed DNS message.";
    SrtpMalformed "srtp_malformed" "No SRTP or SRTCP: header, payload, index, MKI and authentication tag do not fit into its length.";
    SrtpAuthentication "srtp_authentication" "The authentication tag does not match: modified in transit, truncated, or protected with another key.";
    SrtpReplayed "srtp_replayed" "An SRTP or SRTCP packet whose index was received before.";
    SrtpTooOld "srtp_too_old" "An SRTP or SRTCP packet whose index lies before the replay window.";
    SrtpUnknownMki "srtp_unknown_mki" "A master key identifier (MKI) that was not negotiated.";
    SrtpNoKey "srtp_no_key" "There is no master key, or none that is valid for the packet index.";
    SrtpKeyExhausted "srtp_key_exhausted" "The master key has protected the maximum number of packets; a new one is needed.";
    SrtpTooManySources "srtp_too_many_sources" "More synchronisation sources under one set of SRTP keys than are stored.";
    SrtpBufferTooSmall "srtp_buffer_too_small" "The buffer has no space behind the packet for index, MKI and authentication tag.";
    SrtpIndexReused "srtp_index_reused" "A packet to be protected whose sequence number was protected before, or lies before the window: its keystream may not be used twice.";
    EspMalformed "esp_malformed" "No ESP packet, or not the IP packet to be protected: truncated, not a multiple of the cipher's block, or inconsistent lengths.";
    EspUnknownSpi "esp_unknown_spi" "An ESP packet for a security parameter index (SPI) that is not in use.";
    EspNoAssociation "esp_no_association" "A packet for a tunnel without a security association: the key exchange has not ended, or has failed.";
    IkeOverrun "ike_overrun" "An IKE message beyond the queue to the key exchange.";
    EspAuthentication "esp_authentication" "The integrity check value (ICV) does not match: modified in transit, or protected with another key.";
    EspReplayed "esp_replayed" "An ESP packet whose sequence number was received before.";
    EspTooOld "esp_too_old" "An ESP packet whose sequence number lies before the replay window.";
    EspPadding "esp_padding" "An ESP packet whose decrypted padding is invalid.";
    EspSelector "esp_selector" "A packet that the selectors of its security association do not allow: address, protocol, port or mode.";
    EspFragment "esp_fragment" "A fragment where ESP requires a whole packet: an outer fragment, or one to be protected in transport mode.";
    EspCongestionLost "esp_congestion_lost" "A packet without ECN in a tunnel packet with the mark Congestion Experienced (RFC 6040 section 4.2).";
    EspDummy "esp_dummy" "A dummy packet for traffic flow confidentiality, discarded (RFC 4303 section 2.6).";
    EspExpired "esp_expired" "A packet of a security association whose lifetime in bytes or time has ended.";
    EspSequenceExhausted "esp_sequence_exhausted" "A packet to be protected by a security association whose sequence numbers are used up.";
    EspTooLarge "esp_too_large" "A packet to be protected that would exceed the path MTU or the length of an IP packet and may not be fragmented.";
    EspBufferTooSmall "esp_buffer_too_small" "The buffer has no space around the packet for the headers, trailer and ICV of ESP.";
    DtlsUnexpected "dtls_unexpected" "DTLS on a media port without a DTLS association, or after the association has failed or ended.";
    StunMalformed "stun_malformed" "A malformed STUN message: inconsistent lengths, or a wrong FINGERPRINT.";
    StunUnauthenticated "stun_unauthenticated" "A STUN request without valid credentials; answered with an error at most.";
    IceTooManyCandidates "ice_too_many_candidates" "A candidate of an ICE agent beyond the number that is stored.";
    NgSourceNotAllowed "ng_source_not_allowed" "A command for the ng server from a source that is not allowed; a connection of such a source is closed.";
    NgMalformed "ng_malformed" "Bytes at a port of the ng server that are no message of the \"ng\" protocol.";
    NgUnexpectedReply "ng_unexpected_reply" "A reply that matches no command of the ng client, or another message at its socket.";
    NgLate "ng_late" "A reply of a media node received after its command had timed out.";
    MediaMutedForPlayback "media_muted_for_playback" "Media for a side to which a sound is played instead.";
    RecordingOverflow "recording_overflow" "A packet of a recorded call, or a part of its recording, for which a queue on the way to the disk had no space.";
    LinkLost "link_lost" "Lost by a simulated link.";
    LinkQueueFull "link_queue_full" "The queue of a simulated link was full.";
    LinkCodel "link_codel" "Dropped by the active queue management (CoDel) of a simulated link.";
    LinkTooLarge "link_too_large" "A packet larger than the MTU of a simulated link.";
    LinkCorrupted "link_corrupted" "Corrupted by a simulated link, and refused by the receiver for its checksum.";
    SendFailed "send_failed" "The operating system refused to send it.";
    TlsHandshakeFailed "tls_handshake_failed" "A connection whose TLS handshake failed: certificate, name, version, cipher.";
    TlsBroken "tls_broken" "A TLS connection with a record that cannot be decrypted, or a protocol error; closed.";
    WebSocketHandshakeFailed "websocket_handshake_failed" "A WebSocket handshake that failed: a malformed request, an origin, host or protocol that is not served, or an invalid response.";
    WebSocketBroken "websocket_broken" "A WebSocket with an invalid or too large frame; closed.";
    StreamTimeout "stream_timeout" "A connection that did not complete its handshake, or its message, in time; closed.";
    RuleRefused "rule_refused" "A request refused by a header rule.";
    RuleEditRefused "rule_edit_refused" "A change by a header rule that would have made the message malformed; the message was sent without it.";
    RuleConditionFailed "rule_condition_failed" "A condition of a header rule without a value for a message (a text that is no number); evaluated as false.";
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
    /// All counters are zero.
    pub fn new() -> Drops {
        Drops {
            counts: vec![0; DropReason::ALL.len()].into_boxed_slice(),
        }
    }

    /// Counts one drop.
    pub fn count(&mut self, reason: DropReason) {
        if let Some(count) = self.counts.get_mut(reason as usize) {
            *count += 1;
        }
    }

    /// Counts `n` drops.
    pub fn add(&mut self, reason: DropReason, n: u64) {
        if let Some(count) = self.counts.get_mut(reason as usize) {
            *count += n;
        }
    }

    /// The count.
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

    /// The counters above zero, in order of declaration.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.get(reason)))
            .filter(|&(_, count)| count > 0)
    }
}
