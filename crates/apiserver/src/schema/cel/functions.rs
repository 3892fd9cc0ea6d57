//! The functions and operators of rules: what they take, what they give, and what a call costs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::types::Type;

/// What a call costs beyond its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Price {
    /// One.
    Unit,
    /// A tenth of the characters of the first operand.
    Text,
    /// A tenth of those of the second.
    Argument,
    /// A tenth of the shorter of two.
    Shorter,
    /// A tenth of the characters of all operands.
    Texts,
    /// One for each item of the last operand.
    Items,
    /// One for each item of the first.
    Walk,
    /// Characters of the one times those of the other.
    Search,
    /// The same where the second is a regular expression.
    Match,
    /// Items of the one times those of the other.
    Product,
}

/// One form of a function.
#[derive(Debug)]
pub(super) struct Overload {
    pub member: bool,
    pub takes: Vec<Type>,
    pub gives: Type,
    pub price: Price,
}

/// `receiver::name(arguments) result price`. Sources: the CEL specification's standard definitions, and the libraries that
/// the Kubernetes documentation lists (Common Expression Language in Kubernetes).
const SIGNATURES: &str = "
!_(bool) bool
-_(int) int
-_(double) double
_&&_(bool,bool) bool
_||_(bool,bool) bool
@not_strictly_false(bool) bool
_?_:_(bool,A,A) A
_==_(A,A) bool shorter
_!=_(A,A) bool shorter
_+_(int,int) int
_+_(uint,uint) uint
_+_(double,double) double
_+_(string,string) string texts
_+_(bytes,bytes) bytes texts
_+_(list(A),list(A)) list(A)
_+_(timestamp,duration) timestamp
_+_(duration,timestamp) timestamp
_+_(duration,duration) duration
_-_(int,int) int
_-_(uint,uint) uint
_-_(double,double) double
_-_(timestamp,timestamp) duration
_-_(timestamp,duration) timestamp
_-_(duration,duration) duration
_*_(int,int) int
_*_(uint,uint) uint
_*_(double,double) double
_/_(int,int) int
_/_(uint,uint) uint
_/_(double,double) double
_%_(int,int) int
_%_(uint,uint) uint
_[_](list(A),int) A
_[_](map(A,B),A) B
@in(A,list(A)) bool items
@in(A,map(A,B)) bool
size(string) int
size(bytes) int
size(list(A)) int
size(map(A,B)) int
string::size() int
bytes::size() int
list(A)::size() int
map(A,B)::size() int
string::contains(string) bool search
string::startsWith(string) bool argument
string::endsWith(string) bool argument
string::matches(string) bool match
matches(string,string) bool match
bool(bool) bool
bool(string) bool
bytes(bytes) bytes
bytes(string) bytes text
double(double) double
double(int) double
double(uint) double
double(string) double
duration(duration) duration
duration(string) duration
dyn(A) dyn
int(int) int
int(double) int
int(uint) int
int(string) int
int(timestamp) int
int(duration) int
uint(uint) uint
uint(double) uint
uint(int) uint
uint(string) uint
string(string) string
string(bool) string
string(int) string
string(uint) string
string(double) string
string(bytes) string text
string(timestamp) string
string(duration) string
timestamp(timestamp) timestamp
timestamp(string) timestamp
timestamp(int) timestamp
type(A) type
timestamp::getDate() int
timestamp::getDate(string) int
timestamp::getDayOfMonth() int
timestamp::getDayOfMonth(string) int
timestamp::getDayOfWeek() int
timestamp::getDayOfWeek(string) int
timestamp::getDayOfYear() int
timestamp::getDayOfYear(string) int
timestamp::getFullYear() int
timestamp::getFullYear(string) int
timestamp::getMonth() int
timestamp::getMonth(string) int
timestamp::getHours() int
timestamp::getHours(string) int
timestamp::getMinutes() int
timestamp::getMinutes(string) int
timestamp::getSeconds() int
timestamp::getSeconds(string) int
timestamp::getMilliseconds() int
timestamp::getMilliseconds(string) int
duration::getHours() int
duration::getMinutes() int
duration::getSeconds() int
duration::getMilliseconds() int
string::charAt(int) string text
string::indexOf(string) int search
string::indexOf(string,int) int search
string::lastIndexOf(string) int search
string::lastIndexOf(string,int) int search
string::lowerAscii() string text
string::upperAscii() string text
string::trim() string text
string::replace(string,string) string text
string::replace(string,string,int) string text
string::split(string) list(string) text
string::split(string,int) list(string) text
string::substring(int) string text
string::substring(int,int) string text
string::format(list(dyn)) string text
list(string)::join() string walk
list(string)::join(string) string walk
strings.quote(string) string text
string::find(string) string match
string::findAll(string) list(string) match
string::findAll(string,int) list(string) match
list(A)::isSorted() bool walk
list(A)::sum() A walk
list(A)::min() A walk
list(A)::max() A walk
list(A)::indexOf(A) int walk
list(A)::lastIndexOf(A) int walk
sets.contains(list(A),list(A)) bool product
sets.equivalent(list(A),list(A)) bool product
sets.intersects(list(A),list(A)) bool product
url(string) url text
isURL(string) bool text
url::getScheme() string
url::getHost() string
url::getHostname() string
url::getPort() string
url::getEscapedPath() string
url::getQuery() map(string,list(string))
quantity(string) quantity text
isQuantity(string) bool text
quantity::sign() int
quantity::isInteger() bool
quantity::asInteger() int
quantity::asApproximateFloat() double
quantity::add(quantity) quantity
quantity::add(int) quantity
quantity::sub(quantity) quantity
quantity::sub(int) quantity
quantity::isLessThan(quantity) bool
quantity::isGreaterThan(quantity) bool
quantity::compareTo(quantity) int
ip(string) ip text
isIP(string) bool text
ip.isCanonical(string) bool text
ip::family() int
ip::isUnspecified() bool
ip::isLoopback() bool
ip::isLinkLocalMulticast() bool
ip::isLinkLocalUnicast() bool
ip::isGlobalUnicast() bool
string(ip) string
cidr(string) cidr text
isCIDR(string) bool text
cidr::containsIP(ip) bool
cidr::containsIP(string) bool text
cidr::containsCIDR(cidr) bool
cidr::containsCIDR(string) bool text
cidr::ip() ip
cidr::masked() cidr
cidr::prefixLength() int
string(cidr) string
semver(string) semver text
semver(string,bool) semver text
isSemver(string) bool text
isSemver(string,bool) bool text
semver::major() int
semver::minor() int
semver::patch() int
semver::isLessThan(semver) bool
semver::isGreaterThan(semver) bool
semver::compareTo(semver) int
format.named(string) optional(format)
format.dns1123Label() format
format.dns1123Subdomain() format
format.dns1035Label() format
format.qualifiedName() format
format.dns1123LabelPrefix() format
format.dns1123SubdomainPrefix() format
format.dns1035LabelPrefix() format
format.labelValue() format
format.uri() format
format.uuid() format
format.byte() format
format.date() format
format.datetime() format
format::validate(string) optional(list(string)) text
optional.of(A) optional(A)
optional.ofNonZeroValue(A) optional(A)
optional.none() optional(A)
optional(A)::hasValue() bool
optional(A)::value() A
optional(A)::or(optional(A)) optional(A)
optional(A)::orValue(A) A
";

/// Comparisons are there for these, and for numbers of all types with each other.
const ORDERED: [&str; 8] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "timestamp",
    "duration",
];
const COMPARISONS: [&str; 4] = ["_<_", "_<=_", "_>_", "_>=_"];

/// Functions of which nothing is known but that they are there.
const OTHERS: [&str; 14] = [
    "_?._",
    "_[?_]",
    "optMap",
    "optFlatMap",
    "transformList",
    "transformMap",
    "transformMapEntry",
    "sortBy",
    "sort",
    "distinct",
    "flatten",
    "slice",
    "reverse",
    "unwrapOpt",
];

static FUNCTIONS: LazyLock<BTreeMap<String, Vec<Overload>>> = LazyLock::new(|| {
    let mut all: BTreeMap<String, Vec<Overload>> = BTreeMap::new();
    for line in SIGNATURES.lines().filter(|l| !l.is_empty()) {
        let (name, overload) = signature(line);
        all.entry(name).or_default().push(overload);
    }
    for comparison in COMPARISONS {
        for (n, one) in ORDERED.iter().enumerate() {
            for (m, other) in ORDERED.iter().enumerate() {
                if n == m || ((1..4).contains(&n) && (1..4).contains(&m)) {
                    let line = format!("{comparison}({one},{other}) bool shorter");
                    let (name, overload) = signature(&line);
                    all.entry(name).or_default().push(overload);
                }
            }
        }
    }
    all
});

/// The forms of a function; `None` if there is none of that name.
pub(super) fn overloads(name: &str) -> Option<&'static [Overload]> {
    FUNCTIONS.get(name).map(Vec::as_slice)
}

/// Whether a function is taken as it comes.
pub(super) fn is_other(name: &str) -> bool {
    OTHERS.contains(&name) || name.starts_with("math.") || name == "lists.range"
}

fn signature(line: &str) -> (String, Overload) {
    let (receiver, rest) = match line.split_once("::") {
        Some((receiver, rest)) => (Some(receiver), rest),
        None => (None, line),
    };
    let open = rest
        .rfind("](")
        .map_or_else(|| rest.find('('), |at| Some(at + 1));
    let open = open.unwrap_or_default();
    let (name, rest) = rest.split_at(open);
    let close = closing(rest);
    let mut takes: Vec<Type> = receiver.into_iter().map(read).collect();
    takes.extend(parts(&rest[1..close]).into_iter().map(read));
    let mut words = rest[close + 1..].split_whitespace();
    let gives = read(words.next().unwrap_or_default());
    let price = match words.next() {
        Some("text") => Price::Text,
        Some("argument") => Price::Argument,
        Some("shorter") => Price::Shorter,
        Some("texts") => Price::Texts,
        Some("items") => Price::Items,
        Some("walk") => Price::Walk,
        Some("search") => Price::Search,
        Some("match") => Price::Match,
        Some("product") => Price::Product,
        _ => Price::Unit,
    };
    let overload = Overload {
        member: receiver.is_some(),
        takes,
        gives,
        price,
    };
    (name.to_owned(), overload)
}

/// Where the bracket that the text begins with is closed.
fn closing(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return at,
            ')' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// What stands between commas, those inside of brackets aside.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < text.len() {
        parts.push(&text[start..]);
    }
    parts
}

fn read(text: &str) -> Type {
    let inner = |from: usize| parts(&text[from..text.len() - 1]);
    // Sizes of results come from those of operands.
    const UNKNOWN: u64 = 0;
    match text {
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::Text(UNKNOWN),
        "bytes" => Type::Bytes(UNKNOWN),
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "type" => Type::Kind,
        "dyn" => Type::Dyn,
        "A" => Type::Any('A'),
        "B" => Type::Any('B'),
        _ if text.starts_with("list(") => Type::List(Box::new(read(inner(5)[0])), UNKNOWN),
        _ if text.starts_with("optional(") => Type::Optional(Box::new(read(inner(9)[0]))),
        _ if text.starts_with("map(") => {
            let inner = inner(4);
            Type::Map(Box::new(read(inner[0])), Box::new(read(inner[1])), UNKNOWN)
        }
        library => Type::Library(library.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_read_as_it_is_written() {
        let shown = |name: &str| -> Vec<String> {
            let all = overloads(name).unwrap().iter();
            all.map(|o| {
                let takes: Vec<String> = o.takes.iter().map(Type::to_string).collect();
                format!(
                    "{} ({}) {} {:?}",
                    o.member,
                    takes.join(", "),
                    o.gives,
                    o.price
                )
            })
            .collect()
        };
        assert_eq!(
            shown("_[_]"),
            ["false (list(A), int) A Unit", "false (map(A, B), A) B Unit"]
        );
        assert_eq!(
            shown("getQuery"),
            ["true (url) map(string, list(string)) Unit"]
        );
        assert_eq!(
            shown("format.named"),
            ["false (string) optional_type(format) Unit"]
        );
        assert_eq!(shown("contains"), ["true (string, string) bool Search"]);
        assert_eq!(shown("_<_").len(), 14);
        assert!(overloads("nothing").is_none());
    }
}
