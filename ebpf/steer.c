/* Which socket takes a media datagram: the one socket of a worker for all of its media ports.
 *
 * Runs where the kernel looks up the socket of an arriving datagram (sk_lookup). A port that is not open is left to the kernel's
 * own lookup, so that it answers as a closed port does. A port at which far more arrives than media can be is steered into a
 * socket that nobody reads: all ports share one buffer, and one flood must not fill it for the others. */
#include "bpf.h"

#define UDP 17
#define FAMILY_INET 2

/* Addresses of which ports can be open. The first one's ports are the first 65,536 entries of `ports`, and so on. */
#define ADDRESSES 64

/* Time is counted in units of 2^27 ns (134 ms); so many datagrams of one port may come in one: 15,000 a second. Video of
 * 100 Mbit/s has 9,000. */
#define WINDOW_SHIFT 27
#define WINDOW_MOST 2000

struct address {
	__u32 words[4]; /* in network order; IPv4 mapped into IPv6 */
};

/* A port. The layout is known to crates/net/src/steer.rs. */
struct port {
	__u32 open;
	__u32 window;
	__u32 count;
	__u32 flooded; /* datagrams that were led away */
};

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(max_entries, ADDRESSES);
	TYPE(key, struct address);
	TYPE(value, __u32);
} addresses SECTION(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, 65536); /* times the number of addresses, set when it is loaded */
	TYPE(key, __u32);
	TYPE(value, struct port);
} ports SECTION(".maps");

/* Sockets: 0 IPv4, 1 IPv6, 2 and 3 those that nobody reads. */
struct {
	NUMBER(type, BPF_MAP_TYPE_SOCKMAP);
	NUMBER(max_entries, 4);
	TYPE(key, __u32);
	TYPE(value, __u32);
} sockets SECTION(".maps");

SECTION("sk_lookup")
int steer(struct bpf_sk_lookup *context)
{
	if (context->protocol != UDP)
		return SK_PASS;
	struct address key = {};
	__u32 number = 0, v4 = READ(context->local_ip4), v6 = READ(context->local_ip6[3]);
	if (context->family == FAMILY_INET) {
		key.words[2] = __builtin_bswap32(0xffff);
		key.words[3] = v4;
	} else {
		number = 1;
		key.words[0] = READ(context->local_ip6[0]);
		key.words[1] = READ(context->local_ip6[1]);
		key.words[2] = READ(context->local_ip6[2]);
		key.words[3] = v6;
	}
	const __u32 *first = map_lookup(&addresses, &key);
	if (!first)
		return SK_PASS;
	__u32 at = *first + (context->local_port & 0xffff);
	struct port *port = map_lookup(&ports, &at);
	if (!port || !port->open)
		return SK_PASS;
	/* Counted without a lock: cores that count at the same time count a little too low. */
	__u32 window = (__u32)(clock_monotonic() >> WINDOW_SHIFT);
	if (port->window != window) {
		port->window = window;
		port->count = 0;
	}
	port->count += 1;
	if (port->count > WINDOW_MOST) {
		port->flooded += 1;
		number += 2;
	}
	struct bpf_sock *socket = map_lookup(&sockets, &number);
	if (!socket)
		return SK_PASS;
	assign_socket(context, socket, 0);
	release_socket(socket);
	return SK_PASS;
}

LICENCE;
