"""Every step, cheap: the sentinel over the gradients, spike statistics, the record, and ears for ordinary loops."""
