#!/usr/bin/env bash
# Build kube-apiserver, kube-controller-manager and kube-scheduler 1.20.2 from Debian bookworm's source package, once,
# into ${XDG_CACHE_HOME:-~/.cache}/holdfast/kubernetes-1.20.2, and print that folder. Needs root for apt-get, where
# packages are missing; about 3 minutes on two cores. Two at once: the second waits for the first.
set -euo pipefail
version=1.20.2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast
out=$cache/kubernetes-$version
programs=(kube-apiserver kube-controller-manager kube-scheduler)

whole() { for program in "${programs[@]}"; do [ -x "$out/$program" ] || return 1; done; }
packaged() { dpkg-query -W -f '${Status}\n' "$@" 2>/dev/null | grep -c '^install ok installed'; }
have() {
  [ "$(packaged "$@")" -eq $# ] && return
  [ "$(id -u)" -eq 0 ] || { echo "error: missing packages: apt-get install $*" >&2; exit 1; }
  apt-get -o DPkg::Lock::Timeout=600 update -qq
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends "$@" >/dev/null
}

mkdir -p "$cache"
exec 9>"$cache/kubernetes-$version.lock"
flock 9
have etcd-server openssl 9>&-
if whole; then echo "$out"; exit; fi
have golang-1.19-go golang-github-modern-go-reflect2-dev dpkg-dev 9>&-

work=$(mktemp -d "$cache/build.XXXXXX")
# Go makes its module cache read-only.
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
mkdir -p "$work"/apt/lists/partial "$work"/apt/cache/archives/partial "$work/bin"
# The mirrors of this machine, asked for sources.
sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >"$work/apt/src.sources"
cat >"$work/apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$work/apt/src.sources";
Dir::Etc::sourceparts "-";
Dir::State::lists "$work/apt/lists";
Dir::Cache "$work/apt/cache";
APT::Sandbox::User "root";
CONF
cd "$work"
APT_CONFIG=$work/apt/apt.conf apt-get update -qq
APT_CONFIG=$work/apt/apt.conf apt-get source -qq --download-only kubernetes >&2

export GOPATH=$work/gopath GO111MODULE=off GOCACHE=$work/gocache GOFLAGS='' CGO_ENABLED=0 GOPROXY=off
export PATH=/usr/lib/go-1.19/bin:$PATH
source=$GOPATH/src/k8s.io/kubernetes
mkdir -p "$source"
tar xzf kubernetes_*.orig.tar.gz --strip-components=1 -C "$source"
cd "$source"
# The vendored reflect2 breaks on Go 1.18 and later: Debian's own does not.
rm vendor/github.com/modern-go/reflect2/*.go
cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.[gs]* vendor/github.com/modern-go/reflect2/
# The API server's OpenAPI is generated; the source package does not have it.
go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
inputs=$(find -L . \( -path ./_output -o -path ./staging -o -path ./vendor/k8s.io/code-generator \
    -o -path ./vendor/k8s.io/sample-apiserver -o -path ./test \) -prune -o -name '*.go' -print \
  | grep -v /testdata/ | { xargs grep -l '+k8s:openapi-gen=' || true; } | xargs -n1 dirname \
  | sed 's#^\./#k8s.io/kubernetes/#' | LC_ALL=C sort -u | paste -sd,)
"$work/openapi-gen" --logtostderr -i "$inputs" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$work/violations" >&2

flags='-s -w'
for package in component-base/version client-go/pkg/version; do
  at=k8s.io/kubernetes/vendor/k8s.io/$package
  flags="$flags -X $at.gitVersion=v$version -X $at.gitMajor=1 -X $at.gitMinor=20"
done
for program in "${programs[@]}"; do
  go build -tags providerless -ldflags "$flags" -o "$work/bin/$program" "./cmd/$program" >&2
done
rm -rf "$out"
mv "$work/bin" "$out"
echo "$out"
