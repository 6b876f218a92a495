//! Session descriptions and configurations that many tests share.

pub const SDP_A: &str = "v=0\r\no=alice 1 1 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0 101\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\n";
pub const SDP_B: &str = "v=0\r\no=bob 2 2 IN IP4 10.2.0.1\r\ns=-\r\nc=IN IP4 10.2.0.1\r\nt=0 0\r\nm=audio 5000 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n";

/// Two interfaces, one trunk, anchored media.
pub const PLAIN: &str = "[[interface]]\nname='out'\nkind='access'\nlisten=['udp:192.0.2.1:5060','tcp:192.0.2.1:5060']\nmedia={address='192.0.2.1'}\n\
    [[interface]]\nname='in'\nkind='core'\nlisten=['udp:198.51.100.1:5060','tcp:198.51.100.1:5060']\nmedia={address='198.51.100.1'}\n\
    [[trunk]]\nname='pbx'\ninterface='in'\ntarget='udp:10.2.0.1:5060'\n";
