// Sets the color theme before the first paint. Not a module, because modules are deferred.
(() => {
  const KEY = "millstream.theme";
  const CHOICES = ["system", "light", "dark"];

  function stored() {
    try {
      const found = localStorage.getItem(KEY);
      return CHOICES.includes(found) ? found : "system";
    } catch {
      return "system"; // A browser may keep pages from storing anything.
    }
  }

  function choose(choice) {
    document.documentElement.dataset.theme = choice;
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // Without storage, the choice lasts as long as the page.
    }
  }

  document.documentElement.dataset.theme = stored();
  window.millstreamTheme = {
    now: () => document.documentElement.dataset.theme,
    turn() {
      choose(CHOICES[(CHOICES.indexOf(this.now()) + 1) % CHOICES.length]);
      return this.now();
    },
  };
})();
