# Each target does its own set-up on a fresh Debian 12 that has Rust (by rustup) and make.
.PHONY: build release static install deb image sbom demo test bench tidy docs fuzz setup peers clean

CARGO ?= cargo
HORNWORK = target/release/hornwork
# SOUND=yes: with sound cards for the softphone (ALSA).
SOUND ?=
ALSA = /usr/include/alsa/asoundlib.h:libasound2-dev pkg-config:pkg-config
BOLT = llvm-bolt-15:bolt-15

build: setup
	$(if $(SOUND),@packaging/setup $(ALSA))
	$(CARGO) build --release --locked -p hornwork $(if $(SOUND),--features sound)

# With profile-guided optimisation: longer to build, less processor time for each call. Needs llvm-tools of rustup; BOLT
# optimises the code layout, too.
release: setup
	@packaging/setup --wanted $(BOLT)
	$(CARGO) xtask release

# One file without shared libraries, for any Linux of this processor, with musl. Needs rustup for the target.
STATIC = $(shell uname -m)-unknown-linux-musl
static: setup
	@packaging/setup musl-gcc:musl-tools
	@command -v rustup >/dev/null || { echo "make static needs rustup, for the standard library of $(STATIC)"; exit 1; }
	rustup target add $(STATIC)
	$(CARGO) build --release --locked -p hornwork --target $(STATIC)
	@echo "target/$(STATIC)/release/hornwork"

# The program without debug information, the unit, the system user, a configuration where there is none. A program that
# exists is not built again: root often has no cargo, because rustup installs it for one user.
install: $(if $(wildcard $(HORNWORK)),,build)
	@packaging/setup objcopy:binutils
	packaging/install $(HORNWORK) $(DESTDIR)

# The software bill of materials: crates of the program with versions, licences and checksums (CycloneDX).
sbom:
	$(CARGO) xtask sbom target/hornwork.cdx.json

# A Debian package and its debug symbols.
deb: build sbom
	@packaging/setup dpkg-shlibdeps:dpkg-dev objcopy:binutils
	packaging/deb $(HORNWORK) target/debian target/hornwork.cdx.json

# The root file system of packaging/Containerfile.
image: build sbom
	@packaging/setup objcopy:binutils
	packaging/image $(HORNWORK) target/image target/hornwork.cdx.json

demo: build
	$(HORNWORK) demo

test: setup peers
	$(CARGO) xtask test

bench: setup peers
	@packaging/setup --wanted $(BOLT) /usr/include/openssl/evp.h:libssl-dev
	$(CARGO) xtask bench

tidy: setup
	$(CARGO) xtask tidy

docs: setup
	$(CARGO) xtask docs

# An hour of each target, side by side.
fuzz: setup
	$(CARGO) xtask fuzz 3600

# Requirements of the build: Rust of the version in Cargo.toml; a C compiler for the allocator and the ciphers, cmake
# for libopus; libbcg729, without which there is no G.729; clang, without which there is no fast path for media (BPF
# programs).
setup:
	@CARGO="$(CARGO)" packaging/setup --cargo $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
	@packaging/setup cc:gcc cmake:cmake
	@packaging/setup --wanted /usr/include/bcg729/decoder.h:libbcg729-dev clang:clang

# Programs of other projects that the tests use. Tests that need one that is absent say so and are skipped.
peers:
	@packaging/setup --wanted sipp:sip-tester kamailio:kamailio /usr/share/doc/kamailio-tls-modules:kamailio-tls-modules /usr/share/doc/kamailio-websocket-modules:kamailio-websocket-modules rtpengine:rtpengine
	@packaging/setup --wanted baresip:baresip-core linphonec:linphone-cli chromium:chromium openssl:openssl python3:python3 /usr/share/doc/python3-venv:python3-venv /usr/lib/python3/dist-packages/aioice:python3-aioice /usr/lib/python3/dist-packages/pylibsrtp:python3-pylibsrtp
	@packaging/setup --wanted tshark:tshark editcap:wireshark-common ffmpeg:ffmpeg sngrep:sngrep lintian:lintian dpkg-shlibdeps:dpkg-dev buildah:buildah taskset:util-linux ethtool:ethtool ip:iproute2 tc:iproute2 strace:strace systemd-analyze:systemd iperf3:iperf3 ping:iputils-ping nft:nftables linux.uml:user-mode-linux modprobe:kmod openvpn:openvpn curl:curl promtool:prometheus pgrep:procps man:man-db groff:groff-base /usr/lib/postgresql:postgresql snmptrapd:snmptrapd snmptranslate:snmp rsyslogd:rsyslog /usr/share/doc/rsyslog-gnutls:rsyslog-gnutls swanctl:strongswan-swanctl /usr/lib/ipsec/charon:strongswan-charon /usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so:libcharon-extra-plugins /usr/lib/ipsec/plugins/libstrongswan-openssl.so:libstrongswan-standard-plugins
	@packaging/setup --wanted $(ALSA) pulseaudio:pulseaudio /usr/share/doc/libasound2-plugins:libasound2-plugins
	@packaging/setup --venv target/schemathesis schemathesis:schemathesis==4.32.5

clean:
	$(CARGO) clean
