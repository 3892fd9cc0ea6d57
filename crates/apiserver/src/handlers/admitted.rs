//! The part of a write that webhooks have a say in: what they see, and what becomes of what they return.

use serde_json::Value;

use super::write::{Unknown, Writer};
use crate::admission::{Admission, Attributes, Operation};
use crate::error::{ApiError, ApiResult};
use crate::meta;
use crate::ssa;
use crate::store::{Change, CommitError, Key};
use crate::strategy;

impl Writer<'_> {
    /// What the webhooks of this write are asked with; `None` where there are none.
    pub(super) fn attributes<'b>(
        &self,
        admission: Option<&'b Admission>,
        namespace: &'b str,
        name: &'b str,
        operation: Operation,
    ) -> Option<Attributes<'b>>
    where
        Self: 'b,
    {
        let attributes = Attributes {
            server: self.server,
            admission: admission?,
            resource: self.resource,
            version: self.version,
            kind: None,
            namespace,
            name,
            operation,
            dry_run: self.dry_run,
        };
        attributes.any().then_some(attributes)
    }

    /// Refuses a creation in a namespace that is missing or going, before any webhook hears of it.
    pub(super) fn namespace_takes(&self, namespace: &str, new: &Value) -> ApiResult<()> {
        let (key, value) = (Key::of(new), new.clone());
        let rehearsed =
            self.server
                .store
                .rehearse(&self.resource.table, &key, Change::Create { value });
        match rehearsed {
            Err(error @ (CommitError::NamespaceMissing | CommitError::NamespaceTerminating)) => {
                Err(self.refusal(error, &key, namespace))
            }
            _ => Ok(()),
        }
    }

    /// Has a new object changed by webhooks. They see what was sent, with what decoding fills in; what creation sets
    /// comes after them.
    pub(super) async fn mutate_new(
        &mut self,
        attributes: &Attributes<'_>,
        sent: &Value,
        prepared: Value,
        now: &str,
    ) -> ApiResult<Value> {
        let mut seen = sent.clone();
        strategy::wipe_system_fields(&mut seen);
        strategy::defaults(self.resource, self.version, &mut seen);
        meta::carry(&prepared, &mut seen, "managedFields");
        let changed = attributes
            .mutate(Some(&seen), None, &mut self.warnings)
            .await?;
        let Some(changed) = changed else {
            return Ok(prepared);
        };
        let mut new = self.refit(changed, &seen)?;
        if meta::namespace(&new) != meta::namespace(&seen) {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if meta::name(&new).is_empty() {
            meta::carry(&prepared, &mut new, "name");
        }
        let address = "spec.clusterIP";
        if self.resource.kind == "Service"
            && meta::field_text(&new, address).is_empty()
            && let Some(allocated) = meta::field(&prepared, address)
        {
            meta::set_field(&mut new, address, allocated.clone());
        }
        let uid = meta::uid(&prepared);
        strategy::prepare_create(self.resource, self.version, &mut new, uid, now);
        strategy::at_creation(self.resource, &mut new);
        self.server.allocate(self.resource, &mut new);
        self.fill_in(&mut new);
        Ok(new)
    }

    /// Decodes what webhooks made of an object: without field validation, and never with unreadable managedFields.
    pub(super) fn refit(&mut self, mut object: Value, seen: &Value) -> ApiResult<Value> {
        let unknown = std::mem::replace(&mut self.unknown, Unknown::Ignore);
        object["kind"] = seen["kind"].clone();
        let fits = self.fit_type(&mut object);
        self.unknown = unknown;
        fits.map_err(|e| ApiError::internal(e.message()))?;
        if let Some(problem) = ssa::managed_fields_problem(&object) {
            meta::carry(seen, &mut object, "managedFields");
            self.warnings.push(format!(
                ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {problem}"
            ));
        }
        Ok(object)
    }
}
