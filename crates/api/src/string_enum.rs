/// Declares an enum that is a string in the API: serde, JSON schema, ordering, `as_str`, `Display`.
/// Variants carry no doc comments: in a schema those would turn the enum into a `oneOf`, which
/// structural schemas do not allow.
macro_rules! string_enum {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        $vis enum $name { $(#[serde(rename = $text)] $variant),+ }

        impl $name {
            /// The value as it stands in the API.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
