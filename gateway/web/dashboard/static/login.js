// A failed login link may contain a code: remove it from the address bar.
"use strict";
if (location.search) history.replaceState(null, "", location.pathname);
