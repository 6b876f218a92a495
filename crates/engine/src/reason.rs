//! Reasons: why the border refuses a request, and why a call has ended. Each has a status, a text and a meaning.

use serde::{Deserialize, Serialize};

/// Declares the reasons once; enum, statuses, texts, Reason headers and the reference are generated from this list. The
/// last column is the text of the Reason header (RFC 3326) in the BYE or CANCEL of a call that ends for this reason, if
/// it has one.
macro_rules! reasons {
    ($($variant:ident $status:literal $text:literal $meaning:literal $(header $header:literal)?;)*) => {
        /// The reason of a refusal, or of the end of a call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum Reason { $(#[doc = $meaning] $variant,)* }

        impl Reason {
            /// All reasons, in order of declaration.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)*];

            /// The status of a refusal for this reason, where nothing else determines it; 0: it is no refusal.
            pub const fn status(self) -> u16 {
                match self { $(Reason::$variant => $status,)* }
            }

            /// The text in events, records and the Warning header; the reason phrase of a response to REGISTER.
            pub const fn text(self) -> &'static str {
                match self { $(Reason::$variant => $text,)* }
            }

            /// The meaning, in sentences.
            pub const fn meaning(self) -> &'static str {
                match self { $(Reason::$variant => $meaning,)* }
            }

            /// The value of the Reason header (RFC 3326) of a call that ends for this reason.
            pub const fn header(self) -> Option<&'static [u8]> {
                match self { $(Reason::$variant => header!($status $($header)?),)* }
            }
        }
    };
}

macro_rules! header {
    ($status:literal) => {
        None
    };
    ($status:literal $text:literal) => {
        Some(concat!("SIP;cause=", $status, ";text=\"", $text, "\"").as_bytes())
    };
}

reasons! {
    Done 0 "done" "The border has ended the leg itself.";
    Bye 0 "bye" "A side has sent BYE.";
    Cancelled 487 "cancelled" "The caller has cancelled the call before the answer.";
    ByeNotAnswered 0 "bye not answered" "A side has not answered the BYE of the border.";
    NoAck 408 "no ack" "The ACK of a 2xx has not arrived in 64*T1 (RFC 3261 section 13.3.1.4)." header "ACK missing";
    NoPrack 500 "no prack" "The PRACK of a reliable provisional response has not arrived in 64*T1 (RFC 3262 section 3).";
    SessionExpired 408 "session expired" "The session timer was not refreshed (RFC 4028)." header "Session expired";
    DialogUnknown 481 "dialog unknown" "A side has answered a request within the dialog with 481: it does not know the call any more." header "Dialog unknown";
    Transferred 0 "transferred" "The call was replaced by a transfer (RFC 3515, RFC 3891).";
    TransferFailed 0 "transfer failed" "The far side of the call was moved to a transfer that failed, and could not return.";
    RefreshFailed 0 "refresh failed" "A re-INVITE of the border, which both sides needed to agree on their media again, has failed.";
    AnswerNotForwarded 500 "answer cannot be forwarded" "The answer of the called side cannot be sent to the other side: its dialog is gone, or the message is too large.";
    AnswerNotSent 500 "answer cannot be sent" "The answer of a conference cannot be sent: the dialog of the caller is gone.";
    NoAnswer 480 "no answer" "No target has answered within the ring timeout." header "No answer";
    NoResponse 408 "no response from the target" "A target has not responded to the INVITE within timer B, or within the answer timeout of its trunk.";
    Unreachable 503 "target is unreachable" "The INVITE cannot be sent to the target: no connection, or an ICMP error.";
    Refused 0 "refused" "The target has refused the call; the status is its own.";
    Challenged 0 "challenged" "The target has challenged the INVITE, which had no credentials (401 or 407). This is no failed call: it has no record and is not counted. The caller repeats the INVITE with credentials, which is a call of its own.";
    NoListener 503 "no listener of the interface reaches the target" "The interface has no listener of the transport and address family of the target.";
    NameNotResolved 503 "name cannot be resolved" "The domain name of a target has no usable record (RFC 3263).";
    NoTarget 480 "no target to call" "All targets of the route were tried, and none has given a final response.";
    CallOver 500 "the call has ended" "The call has ended while a target was being called.";
    AlreadyAnswered 500 "the call is already answered" "Another target has answered while this one was being called.";
    NoSuchHop 500 "no such hop" "The target was removed by a reload of the configuration while the call waited.";
    MediaTimeout 408 "media timeout" "No RTP or RTCP has arrived from either side within `timeout_s` of `[media]`." header "No media";
    MediaRefused 503 "media refused" "The media threads have no space for another session." header "Media refused";
    MediaPort 503 "no free media port" "The media ports of the call are in use by other programs, and no others of the interface are left; `media_ports_exhausted` names interface, address and range. Or a port had been sent in a description before it could not be opened, and no side accepted the re-INVITE with another one, or DTLS or ICE is bound to it. Set `ports` of its `media` to a larger range, or one that other programs do not use. At the limit of open files, or without the address, `socket_failed` has the error instead: raise LimitNOFILE=, or add the address." header "Media port";
    MediaKeys 488 "media keys" "The SRTP keys cannot be agreed: DTLS handshake, fingerprint or ICE has failed." header "Media keys";
    MediaNodeLost 408 "media node lost" "The media node of the call is lost, and no other node could take the call." header "Media lost";
    EndedByOperator 480 "ended by operator" "The operator has ended the call." header "Ended by operator";
    Drained 503 "drained" "The time of a drain is over, and the call was still up." header "Shutting down";
    RemovedByControl 480 "removed by control" "A control request has removed the participant from the conference." header "Removed from the conference";
    WrongPin 403 "wrong PIN" "The caller of a conference has entered a wrong PIN too often." header "PIN missing or wrong";
    NoPin 403 "no PIN" "The caller of a conference has entered no PIN in time." header "PIN missing or wrong";
    DisplacedFromLobby 486 "displaced from the lobby" "The lobby of the conference is full; the caller that was idle for longest gave way." header "Displaced from the lobby";
    LobbyFull 486 "limit of callers in the lobby reached" "The lobby of the conference is full." header "Lobby full";
    ConferenceFull 486 "the conference is full" "The conference has `max_participants` participants." header "Conference full";
    ConferenceLocked 403 "the conference is locked" "A control request has locked the conference." header "Conference locked";
    TooManyConferences 503 "limit of conferences reached" "The table has `max_conferences` conferences." header "Too many conferences";
    ConferenceElsewhere 503 "the conference belongs to another worker" "The configuration is being reloaded, and the workers disagree for a moment; the caller may try again.";
    NoMediaInterface 488 "the interface has no media" "The interface of the caller has no media ports, which a conference needs.";

    AuthenticationRequired 401 "authentication required" "The request has no credentials, or a nonce that has expired; the response has a challenge (401 for REGISTER, otherwise 407).";
    UnreadableCredentials 400 "unreadable credentials" "Authorization or Proxy-Authorization breaks the grammar (RFC 7616).";
    ForeignCredentials 400 "credentials for another target" "The `uri` of the credentials is not that of the request.";
    WrongPassword 401 "wrong password" "The digest of the credentials does not match the password of the user (401 for REGISTER, otherwise 407).";
    UnknownUser 401 "unknown user" "No `[[user]]` has the user name of the credentials (401 for REGISTER, otherwise 407).";
    ForeignAddressOfRecord 403 "address of record belongs to another user" "The credentials are right, but From (To in a REGISTER) is not an address of their user.";
    TooManyFailures 503 "credentials not checked: too many failures" "The source or the user had too many wrong passwords; see `[realm]`.";
    ForeignSource 403 "source belongs to no trunk of this core interface: add it to `sources` of the trunk, or to `allow`" "A core interface accepts requests of configured systems only.";
    InterfaceRemoved 503 "the interface was removed from the configuration" "The request arrived at an address that a reload has removed.";

    Loop 482 "loop" "A request of the border has returned from the same side as before, with the same Request-URI (RFC 5393 section 4.2).";
    BreadthExhausted 440 "Max-Breadth is exhausted" "Max-Breadth of the INVITE is 0 (RFC 5393 section 5).";
    Draining 503 "draining" "The border is being drained and takes no new calls.";
    CallLimit 503 "call limit reached" "The border has as many calls as `[limits] calls` allows.";
    CapacityExhausted 503 "capacity exhausted" "Admission control: the calls that are up have reserved the memory or the processor; the status is `status` of `[limits]`.";
    OverloadOfTrunks 503 "overload control of all trunks rejects the call" "The trunks have asked for less load (RFC 7339).";
    TrunkFull 503 "the trunk of the call is at its call limit" "The trunk that the call comes from has as many calls as its `max_calls` allows.";
    TrunksFull 503 "all trunks are at their call limit" "Every trunk of the route has as many calls as its `max_calls` allows.";
    TrunkRate 503 "the trunk has got as many calls in a second as it takes" "The trunk has got as many calls within a second as its `max_calls_per_s` allows, and no other trunk of the route took the call.";
    TrunksDown 503 "all trunks are down" "No target of the trunks of the route answers OPTIONS.";
    TrunksOutOfService 503 "all trunks are out of service" "The operator has taken every trunk of the route that could take the call out of service.";
    RefusedByRoute 0 "refused by a route" "A route has the action `reject`; status and reason phrase are its own.";
    RefusedByRule 0 "refused by a header rule" "A header rule has the action `reject`; status and reason phrase are its own.";
    NoRoute 404 "no route" "No route matches, and the called number is no registered user.";
    NotRegistered 480 "user is not registered" "The called user is known and has no registration.";
    RegistrationOver 480 "registration has ended" "The called contact is one of the border, and its registration has ended.";
    SipsNeedsTls 480 "sips requires TLS, which no destination has" "The Request-URI is a SIPS URI, and no target has TLS (RFC 5630 section 5.1.1.2).";
    UnreadableUri 400 "unreadable Request-URI" "The Request-URI breaks the grammar.";
    UnsupportedScheme 416 "unsupported URI scheme" "The Request-URI is no SIP, SIPS, tel or service URI.";
    UnreadableFrom 400 "From cannot be read" "From breaks the grammar.";
    UnreadableTo 400 "To cannot be read" "To breaks the grammar.";
    PrivacyNeedsMedia 500 "media privacy requires anchored media" "The caller asks for `Privacy: session`, and the call is not anchored (RFC 3323 section 5.2).";
    TableFull 503 "table full" "The table of dialogs or transactions is full.";
    TooLarge 513 "message too large" "The forwarded INVITE would be longer than the limit of a message.";
    ReplacesUnknown 481 "the dialog in Replaces does not exist" "Replaces names no dialog of an established call (RFC 3891 section 3).";
    ReplacesAnswered 486 "the dialog in Replaces is already answered" "Replaces has `early-only`, and the dialog is confirmed (RFC 3891 section 3).";
    ReplacesChanging 491 "the dialog in Replaces is changing" "The dialog in Replaces is in an offer, answer or transfer.";
    ReplacesOnNode 488 "Replaces is not supported for a dialog with media at a media node" "See docs/limits.md.";

    RegistrationsNotAccepted 403 "registrations are not accepted here" "The interface has `register = \"refuse\"`.";
    RegistrationRate 503 "too many registrations at a time" "The rate limit of registrations.";
    SubscriptionsNotForwarded 489 "subscriptions are not forwarded" "The interface has `subscribe = false`.";
    NotificationsNotForwarded 481 "notifications are not forwarded" "The interface has `subscribe = false`.";
    ReferNotForwarded 403 "out-of-dialog REFER is not forwarded" "The interface has `refer = false`.";
    NoSubscriptionServer 489 "no server for this subscription" "A phone subscribes to its own state, which no trunk provides.";
    TooManySubscriptions 503 "too many subscriptions" "The table of subscriptions is full.";
    NoContact 400 "no Contact" "A SUBSCRIBE without a Contact.";

    BadExtension 420 "Bad Extension" "REGISTER requires an extension that is not supported.";
    ExtensionRequired 421 "Extension Required" "REGISTER came through a proxy with Path, and the phone does not support it (RFC 3327).";
    BadCallIdOrCseq 400 "Bad Call-ID Or CSeq" "Call-ID or CSeq of a REGISTER cannot be read, or is too long.";
    BadContact 400 "Bad Contact" "A Contact of a REGISTER breaks the grammar.";
    TooManyContacts 400 "Too Many Contacts" "A REGISTER lists more contacts than the border reads.";
    BadContactUri 400 "Bad Contact URI" "A Contact of a REGISTER is no SIP or SIPS URI.";
    ContactTooLong 400 "Contact Too Long" "A Contact of a REGISTER is too long to be stored.";
    BadContactWildcard 400 "Bad Contact Wildcard" "`Contact: *` with other contacts, or without `Expires: 0` (RFC 3261 section 10.2.2).";
    SeveralContacts 400 "Several Contacts With Reg-Id" "A REGISTER with `reg-id` has more than one contact (RFC 5626 section 6).";
    NoOutbound 439 "First Hop Lacks Outbound Support" "A REGISTER with `reg-id` came through a proxy without `ob` in Path (RFC 5626 section 6).";
    IntervalTooBrief 423 "Interval Too Brief" "The expiry of a REGISTER is shorter than `min_expires_s`; Min-Expires names it.";
    BadRegId 400 "Bad Reg-Id" "`reg-id` is no number from 1 to 2^31-1 (RFC 5626 section 4.2).";
    CseqOutOfOrder 500 "CSeq Out Of Order" "A REGISTER of the same Call-ID with a lower CSeq than the last (RFC 3261 section 10.3).";
    UserTooLong 400 "User Too Long" "The user part of To in a REGISTER is longer than 256 bytes.";
    TooManyRegistrations 503 "Too Many Registrations" "The user has as many contacts as `max_contacts` or as many numbers as `max_numbers` allows, or the table of registrations is full.";
    RegistrationLost 500 "Registration Lost" "The core has answered a forwarded REGISTER whose state is gone.";
    RegistrationRefusedMeanwhile 500 "Registration Refused Meanwhile" "The registration was changed while the core processed this REGISTER.";

    NotSdp 488 "body is no session description" "The body does not begin with `v=0`.";
    BadMediaLine 488 "media line cannot be read" "An `m=` line breaks the grammar.";
    TooManyMediaLines 488 "too many media lines" "The session description has more media lines than the border anchors.";
    NoConnectionLine 488 "no usable connection line (c=) for a media line" "A media line in use has no `c=` line with a unicast address or a host name, and the session has none (RFC 8866 section 5.7).";
    NoMediaPort 503 "no media port left" "All ports of the pool are in use; `media_ports_exhausted` names interface, address and range.";
    NothingToAnchor 488 "no media line can be anchored" "None of the media lines has a transport and a port that the border anchors.";
    NoMediaFamily 488 "no media address of this address family" "The session description has media at an IPv6 address (or IPv4), and `media` of the interface has none of that family.";
    NoMediaSecurity 488 "media security cannot be agreed" "SRTP, or its absence, as `srtp` of the interface or trunk requires, is not offered.";
    NoNode 503 "no media node available" "No media node is available, or the node of the call does not answer.";
    NoCodec 488 "no codec supported by the conference" "None of the offered codecs is configured for the conference.";
    EncodedSdp 415 "encoded session description in a multipart body" "The session description has a Content-Transfer-Encoding.";
}

#[cfg(test)]
mod tests {
    use super::Reason;
    use std::collections::BTreeSet;

    #[test]
    fn texts_are_distinct_and_statuses_are_refusals() {
        let texts: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.text()).collect();
        assert_eq!(texts.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            assert!(
                reason.status() == 0 || (400..700).contains(&reason.status()),
                "{reason:?}"
            );
            assert!(reason.meaning().ends_with('.'), "{reason:?}");
        }
    }

    #[test]
    fn header_has_cause_and_text() {
        let expected: &[u8] = b"SIP;cause=408;text=\"ACK missing\"";
        assert_eq!(Reason::NoAck.header(), Some(expected));
        assert_eq!(Reason::Bye.header(), None);
    }
}
