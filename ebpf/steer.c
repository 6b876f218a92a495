/* Steers media datagrams into the shared-port socket of a worker.
 *
 * Runs at the kernel's socket lookup for a received datagram (sk_lookup). Ports that are not open are left to the kernel's own lookup,
 * so that they respond as closed ports. Datagrams of a port above the highest rate of media are steered into a socket that is never
 * read: all ports share one buffer, which a flood on one port must not fill. */
#include "bpf.h"

#define UDP 17
#define FAMILY_INET 2

/* Largest number of addresses. The ports of the first one are the first 65,536 entries of `ports`, and so on. */
#define ADDRESSES 64

/* Rate limit of a port: datagrams in a window of 2^27 ns (134 ms), which is 15,000 per second. Video of 100 Mbit/s needs
 * 9,000. */
#define WINDOW_SHIFT 27
#define WINDOW_MOST 2000

struct address {
	__u32 words[4]; /* in network order; IPv4 mapped into IPv6 */
};

/* A port; crates/net/src/steer.rs uses the same layout. */
struct port {
	__u32 open;
	__u32 window;
	__u32 count;
	__u32 flooded; /* datagrams above the rate limit */
};

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(max_entries, ADDRESSES);
	TYPE(key, struct address);
	TYPE(value, __u32);
} addresses SECTION(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, 65536); /* times the number of addresses; set at load time */
	TYPE(key, __u32);
	TYPE(value, struct port);
} ports SECTION(".maps");

/* Sockets: 0 IPv4, 1 IPv6; 2 and 3 are their counterparts for floods, which are never read. */
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
	/* Counted without a lock: concurrent increments may be lost, so the count may be slightly too low. */
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
